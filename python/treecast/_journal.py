"""Journals: the completed runs of a sweep or a study, one line per run, so that an interrupted one can resume."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

from treecast import _treecast
from treecast._points import Row
from treecast._treecast import TreecastError


def build() -> str:
    """One line that identifies the build, because another may simulate differently."""
    digest = hashlib.sha256(Path(_treecast.__file__).read_bytes()).hexdigest()
    return f"{version('treecast')} {digest}"


class JournalFile:
    """An open and locked file that begins with `head`, a line that names the kind of journal (`what`) and the build.

    `text` is its content when it was opened: the head and the complete lines.
    """

    def __init__(self, path: str | os.PathLike[str], head: str, what: str) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115
        try:
            self._lock(path)
            self.text = self._read(path, head.encode(), what)
        except BaseException:
            self._file.close()
            raise

    def _lock(self, path: str | os.PathLike[str]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TreecastError(f"{os.fspath(path)} is in use: another sweep or study is kept there") from None
        except OSError:
            pass  # On a file system without locks we assume that no other process uses the file.

    def _read(self, path: str | os.PathLike[str], head: bytes, what: str) -> bytes:
        self._file.seek(0)
        text = self._file.read()
        # A program that was killed may have left an incomplete line.
        whole = text[: text.rfind(b"\n") + 1]
        if not whole and head.startswith(text):
            self._file.truncate(0)
            self._file.write(head)
            self._file.flush()
            return head
        if not whole.startswith(head):
            known = whole.split()[:2] == head.split()[:2]
            wrong = "was started by another build of treecast, whose rows may differ" if known else f"is no {what}"
            raise TreecastError(f"{os.fspath(path)} {wrong}: give another path, or remove the file")
        self._file.truncate(len(whole))
        return whole

    def write(self, lines: str) -> None:
        """Appends complete lines."""
        self._file.write(lines.encode())
        self._file.flush()

    def close(self) -> None:
        """Closes and unlocks the file."""
        self._file.close()


class Journal:
    """The journal of a sweep; `rows` are its rows by the keys of their points."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = JournalFile(path, f"treecast sweep 1, build {build()}\n", "sweep")
        self.rows: dict[str, Row] = {}
        for number, line in enumerate(self._file.text.splitlines()[1:], start=2):
            try:
                entry = json.loads(line)
                self.rows[json.dumps(entry["point"], sort_keys=True)] = entry["row"]
            except (ValueError, TypeError, KeyError):
                self._file.close()
                wrong = "is corrupt: remove the line, and its point is run again"
                raise TreecastError(f"line {number} of {os.fspath(path)} {wrong}") from None

    def add(self, rows: dict[str, Row]) -> None:
        """Appends rows by the keys of their points."""
        self._file.write("".join(f'{{"point": {key}, "row": {json.dumps(row)}}}\n' for key, row in rows.items()))

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
