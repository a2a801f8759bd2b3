"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: str | os.PathLike[str], contents: bytes) -> None:
    """Writes a file beside its place first, and moves it there. What is no file, such as a pipe, is written to."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        place.write_bytes(contents)
        return
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(contents)
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
