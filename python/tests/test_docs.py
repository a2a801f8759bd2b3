"""What the docstrings, the README and the pages about Python show is what happens."""

import contextlib
import doctest
import inspect
import io
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import is_typeddict

import pytest
from conftest import ROOT

import treecast
import treecast.aio


def documented():
    yield "treecast", treecast
    for name in treecast.__all__:
        thing = getattr(treecast, name)
        yield name, thing
        if inspect.isclass(thing) and not is_typeddict(thing):
            for member in vars(thing):
                if not member.startswith("_") and member not in ("with_traceback", "add_note"):
                    yield f"{name}.{member}", getattr(thing, member)
    yield "treecast.aio", treecast.aio
    for thing in (treecast.aio.Node, treecast.aio.NodeGroup):
        yield f"aio.{thing.__name__}", thing
        for member in vars(thing):
            if not member.startswith("_"):
                yield f"aio.{thing.__name__}.{member}", getattr(thing, member)


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*pair, id=pair[0]) for pair in documented()])
def test_a_docstring_is_there_and_its_examples_run(name, thing):
    text = inspect.getdoc(thing)
    assert text
    test = doctest.DocTestParser().get_doctest(text, dict(vars(treecast)), name, None, 0)
    report = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)


# A Python block that is not a file, and its output if a text block follows.
BLOCK = re.compile(r"^```python\n(?!# \w+\.py$)(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
# A file, the commands that follow, and their output.
SCRIPT = re.compile(
    r"^```python\n# (\w+\.py)\n([^`]*?)^```$[^`]*^```sh\n([^`]*?)^```$\s*^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("page", ["docs/python.md", "docs/library.md", "docs/trees.md"])
def test_the_python_of_a_page_prints_the_output_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert blocks
    names = {"__name__": "page"}
    for block in blocks:
        code, expected = on_free_ports(*block)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert printed.getvalue() == expected, code


@pytest.mark.parametrize("page", ["README.md", "docs/guide/program.md"])
def test_the_processes_of_a_page_print_the_output_shown(page, tmp_path):
    scripts = SCRIPT.findall((ROOT / page).read_text("utf-8"))
    assert scripts
    for name, code, commands, expected in scripts:
        assert len([line for line in code.splitlines() if line]) < 10
        code, commands = on_free_ports(code, commands)
        (tmp_path / name).write_text(code)
        # Line buffering, as at a terminal.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        shell = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 60}
        done = subprocess.run(["sh", "-ec", commands], **shell)
        assert (done.stdout, done.stderr) == (expected, "")


def on_free_ports(*texts):
    """The same texts with free ports, because those of the text may be in use."""
    with contextlib.ExitStack() as stack:
        sockets = {}
        # Port 0 stays.
        pattern = re.compile(r"127\.0\.0\.1:[1-9]\d*")
        for address in pattern.findall("".join(texts)):
            if address not in sockets:
                sockets[address] = stack.enter_context(socket.socket())
                sockets[address].bind(("127.0.0.1", 0))
        ports = {address: socket.getsockname()[1] for address, socket in sockets.items()}
    return [pattern.sub(lambda found: f"127.0.0.1:{ports[found[0]]}", text) for text in texts]
