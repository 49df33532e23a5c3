"""A file of JSON lines, each written at once so that a killed process loses nothing."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from lookfurther.errors import DemonstrationError, RunLocked


class Journal:
    """JSON lines in one file, locked by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DemonstrationError(f"{path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise RunLocked(
                f"another recorder uses {path}: close it, or record into another set"
            ) from None

    def read_lines(self) -> list[dict[str, Any]]:
        """Return all complete lines; drop an incomplete last line of a killed process."""
        content = self.path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        try:
            lines: list[Any] = [json.loads(line) for line in complete.splitlines()]
        except (ValueError, RecursionError):
            lines = [None]
        if not all(isinstance(line, dict) for line in lines):
            raise DemonstrationError(f"{self.path} is not a recorder journal: move it away")
        os.ftruncate(self._descriptor, len(complete))
        return lines

    def append(self, line: dict[str, Any]) -> None:
        """Write a line; if that fails, remove the part already written."""
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            os.ftruncate(self._descriptor, end)
            raise DemonstrationError(f"{self.path} cannot be written: {error.strerror}") from None

    def clear(self) -> None:
        """Delete all lines."""
        os.ftruncate(self._descriptor, 0)

    def archive(self) -> Path:
        """Move the lines to a new file and return its path."""
        number = 1
        while (archived := self.path.with_suffix(f".{number}{self.path.suffix}")).exists():
            number += 1
        archived.write_bytes(self.path.read_bytes())
        self.clear()
        return archived

    def close(self) -> None:
        """Close the file and release the lock."""
        os.close(self._descriptor)
