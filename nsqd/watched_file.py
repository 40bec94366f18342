"""A file that is read at the start, and again whenever it has changed: the files of rights and of policies."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from nsqcommon.startup import StartupError

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_INTERVAL: Final = 1.0  # seconds
_UNREADABLE: Final = (0, 0, 0)


class WatchedFile(Generic[T]):
    """What the file says, as `now`. While its present content is invalid, what it said before stays in force."""

    def __init__(self, kind: str, path: str, parse: Callable[[str], T]) -> None:
        """Read the file. `parse` raises ValueError with what is wrong. Raises StartupError."""
        self.path = path
        self.error = ""  # why the present content is not in force
        self._kind = kind
        self._parse = parse
        try:
            self._seen = self._look()
            self.now = self._read()
        except (OSError, ValueError) as error:
            raise StartupError(f"failed to read {kind} {path} - {_text_of(error)}") from error

    def _read(self) -> T:
        with open(self.path, encoding="utf-8", newline="") as file:
            return self._parse(file.read())

    def _look(self) -> tuple[int, int, int]:
        status = os.stat(self.path)
        return status.st_mtime_ns, status.st_size, status.st_ino

    async def follow(self, changed: Callable[[], None] | None = None) -> None:
        """Watch the file until cancelled, and call `changed` after each new content that is valid."""
        while True:
            await trio.sleep(_LOOK_INTERVAL)
            if await self._is_news() and changed is not None:
                changed()

    async def _is_news(self) -> bool:
        try:
            seen = self._look()
            if seen == self._seen:
                return False
            self._seen = seen
            # Parsing thousands of entries takes a while, and clients must not wait for it.
            self.now = await trio.to_thread.run_sync(self._read)
        except (OSError, ValueError) as error:
            self.error = _text_of(error)
            if self._seen is not _UNREADABLE:
                log.error("%s %s - %s; what it said before still holds", self._kind, self.path, self.error)
            if isinstance(error, OSError):
                self._seen = _UNREADABLE
            return False
        self.error = ""
        log.info("%s %s was read again", self._kind, self.path)
        return True


def _text_of(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
