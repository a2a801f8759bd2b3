"""Fixtures that several tests use."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from treecast import Node

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


@pytest.fixture
def pair():
    """Makes a group of two nodes of this process: the root's, and that of the other member."""
    with contextlib.ExitStack() as stack:

        def make(**settings):
            nodes = [stack.enter_context(Node("127.0.0.1:0")) for _ in range(2)]
            members = [node.address for node in nodes]
            return [node.group(members, **settings) for node in nodes]

        yield make
