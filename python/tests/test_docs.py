"""What the docstrings, the README and docs/python.md show is what happens."""

import contextlib
import doctest
import inspect
import io
import re
from typing import is_typeddict

import pytest
from conftest import ROOT

import treecast


def documented():
    yield "treecast", treecast
    for name in treecast.__all__:
        thing = getattr(treecast, name)
        yield name, thing
        if inspect.isclass(thing) and not is_typeddict(thing):
            for member in vars(thing):
                if not member.startswith("_") and member not in ("with_traceback", "add_note"):
                    yield f"{name}.{member}", getattr(thing, member)


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*pair, id=pair[0]) for pair in documented()])
def test_a_docstring_is_there_and_its_examples_run(name, thing):
    text = inspect.getdoc(thing)
    assert text
    test = doctest.DocTestParser().get_doctest(text, dict(vars(treecast)), name, None, 0)
    report = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)


# A block of Python, and what it prints if a block of text follows.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_of_a_page_prints_what_stands_there(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert blocks
    names = {"__name__": "page"}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert printed.getvalue() == expected, code
