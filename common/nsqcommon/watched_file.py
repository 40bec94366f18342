"""Files that are read at startup and again after each change: of rights, of policies, of decoders.

A file may name others, like the schemas of a decoders file, which are watched as well. While such a file is invalid, we
try it again at each look, because the reason may be a named file that is yet to come.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, TypeVar

import trio

from nsqcommon.startup import StartupError

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_INTERVAL: Final = 1.0  # seconds
FileStatus = tuple[int, int, int]
UNREADABLE: Final[FileStatus] = (0, 0, 0)


class WatchedFile(Generic[T]):
    """A file and its parsed content, `now`. If a new version is invalid, `now` keeps the previous one."""

    def __init__(
        self,
        kind: str,
        path: str,
        parse: Callable[[str], T],
        *,
        last_valid: Callable[[], T | None] = lambda: None,
        named: Callable[[T], Mapping[str, FileStatus]] | None = None,
    ) -> None:
        """Read the file. `parse` raises ValueError with a message if the content is invalid.

        `named` returns the other files that the content was made from, and their status before they were read.
        If the file is unusable, the content comes from `last_valid`. If that returns None, this raises StartupError.
        """
        self.path = path
        self.error = ""  # why the file's newest version is not in force
        self._kind = kind
        self._parse = parse
        self._named = named
        self._seen = UNREADABLE
        try:
            self._seen = self._look()
            self.now = self._read()
        except (OSError, ValueError) as error:
            last = last_valid()
            if last is None:
                raise StartupError(f"failed to read {kind} {path} - {_text_of(error)}") from error
            self.now, self.error = last, _text_of(error)
            log.error("%s %s - %s; using the last valid copy", kind, path, self.error)

    def _read(self) -> T:
        with open(self.path, encoding="utf-8", newline="") as file:
            return self._parse(file.read())

    def _look(self) -> FileStatus:
        return _status_of(os.stat(self.path))

    def _is_as_named(self) -> bool:
        """Return True if the named files are as they were when the content was made."""
        return self._named is None or all(look(path) == seen for path, seen in self._named(self.now).items())

    async def follow(self, changed: Callable[[], Awaitable[None]] | None = None) -> None:
        """Watch the file until cancelled, and call `changed` after each valid new version."""
        while True:
            await trio.sleep(_LOOK_INTERVAL)
            if await self._reload_if_changed() and changed is not None:
                await changed()

    async def _reload_if_changed(self) -> bool:
        former = self.error
        is_new = True
        try:
            seen = self._look()
            is_new = seen != self._seen
            if not is_new and self._is_as_named() and not (former and self._named is not None):
                return False
            self._seen = seen
            # In a thread, because parsing thousands of entries would stall all clients.
            self.now = await trio.to_thread.run_sync(self._read)
        except (OSError, ValueError) as error:
            self.error = _text_of(error)
            if self._seen is not UNREADABLE and (is_new or self.error != former):
                log.error(
                    "failed to reload %s %s - %s; keeping the previous version", self._kind, self.path, self.error
                )
            if isinstance(error, OSError):
                self._seen = UNREADABLE
            return False
        self.error = ""
        log.info("reloaded %s %s", self._kind, self.path)
        return True


def look(path: str) -> FileStatus:
    """Return what tells one version of a file from another; UNREADABLE if there is none."""
    try:
        return _status_of(os.stat(path))
    except (OSError, ValueError):
        return UNREADABLE


def _status_of(status: os.stat_result) -> FileStatus:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _text_of(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
