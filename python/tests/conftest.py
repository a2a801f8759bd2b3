"""Fixtures that several tests use."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A shell starts what runs in the background with SIGINT ignored, which the processes of tests would
# inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def command():
    """Runs the `treecast` command, and returns its output."""
    program = os.environ.get("TREECAST", ROOT / "target/debug/treecast")

    def run(*arguments: str) -> str:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    return run
