"""What is done of a sweep, line by line in a file, so that an interrupted one goes on where it stopped."""

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


def _head() -> bytes:
    """The first line. It tells builds apart: another may simulate otherwise."""
    digest = hashlib.sha256(Path(_treecast.__file__).read_bytes()).hexdigest()
    return f"treecast sweep 1, build {version('treecast')} {digest}\n".encode()


class Journal:
    """A journal that is open, and locked against other sweeps; `rows` are those it has, by the key of their point."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115
        try:
            self._lock(path)
            self.rows = self._read(path)
        except BaseException:
            self._file.close()
            raise

    def _lock(self, path: str | os.PathLike[str]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TreecastError(f"{os.fspath(path)} is in use: another sweep keeps its points there") from None
        except OSError:
            pass  # Where files cannot be locked we trust that we are alone.

    def _read(self, path: str | os.PathLike[str]) -> dict[str, Row]:
        self._file.seek(0)
        text, head = self._file.read(), _head()
        # What was cut short when a sweep was killed does not count.
        whole = text[: text.rfind(b"\n") + 1]
        if not whole and head.startswith(text):
            self._file.truncate(0)
            self._file.write(head)
            self._file.flush()
            return {}
        if not whole.startswith(head):
            known = whole.startswith(b"treecast sweep ")
            what = "was begun by another build of treecast, whose rows may differ" if known else "is no sweep"
            raise TreecastError(f"{os.fspath(path)} {what}: give another path, or remove the file")
        self._file.truncate(len(whole))
        entries = map(json.loads, whole.splitlines()[1:])
        return {json.dumps(entry["point"], sort_keys=True): entry["row"] for entry in entries}

    def add(self, rows: dict[str, Row]) -> None:
        """Writes rows by the keys of their points."""
        lines = (f'{{"point": {key}, "row": {json.dumps(row)}}}\n' for key, row in rows.items())
        self._file.write("".join(lines).encode())
        self._file.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
