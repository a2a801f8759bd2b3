"""Atomically written files."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: str | os.PathLike[str], contents: bytes) -> None:
    """Writes a temporary file, and renames it. Pipes and devices are written directly."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(contents)
        return
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(contents)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
