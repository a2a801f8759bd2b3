"""Fixtures that several tests use."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def command():
    """Runs the `treecast` command, and returns its output."""
    program = os.environ.get("TREECAST", ROOT / "target/debug/treecast")

    def run(*arguments: str) -> str:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    return run
