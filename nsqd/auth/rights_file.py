"""`--rights-file`: read at the start, and again whenever the file has changed."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import trio

from common.startup import StartupError
from nsqd.auth.rights import Rights, RightsError, parse_rights

if TYPE_CHECKING:
    from nsqd.auth.grants import Grant, Question

log = logging.getLogger(__name__)

_LOOK_INTERVAL: Final = 1.0  # seconds


class RightsFile:
    """The rights in force, as `now`.

    Names of certificates count only if `names_count`: then TLS has verified the certificate.
    """

    def __init__(self, path: str, *, names_count: bool) -> None:
        """Read the file. Raises StartupError."""
        self._path = path
        self._names_count = names_count
        try:
            self._seen = self._look()
            self.now = self._read()
        except (OSError, RightsError) as error:
            raise StartupError(f"failed to read rights file {path} - {_text_of(error)}") from error

    def _read(self) -> Rights:
        with open(self._path, encoding="utf-8") as file:
            try:
                rights = parse_rights(file.read())
            except UnicodeDecodeError as error:
                raise RightsError(str(error)) from error
        if not self._names_count and any(holder.common_name for holder in rights.holders):
            raise RightsError("a common_name needs --tls-client-auth-policy=require-verify, or anybody could claim it")
        return rights

    def _look(self) -> tuple[int, int, int]:
        status = os.stat(self._path)
        return status.st_mtime_ns, status.st_size, status.st_ino

    async def follow(self) -> None:
        """Watch the file until cancelled. While the file is invalid, the previous rights stay in force."""
        while True:
            await trio.sleep(_LOOK_INTERVAL)
            try:
                seen = self._look()
                if seen != self._seen:
                    self._seen = seen
                    # Parsing thousands of entries takes a while, and clients must not wait for it.
                    self.now = await trio.to_thread.run_sync(self._read)
                    log.info("rights file %s was read again", self._path)
            except (OSError, RightsError) as error:
                if self._seen is not _UNREADABLE:
                    log.error("rights file %s - %s; what was allowed before still is", self._path, _text_of(error))
                if isinstance(error, OSError):
                    self._seen = _UNREADABLE

    def grant(self, question: Question) -> Grant | None:
        """Return the grant for AUTH over TCP, or None if the file knows neither the token nor the certificate."""
        common_name = question.common_name if self._names_count else ""
        rights = self.now
        holder = rights.holder(question.secret, "") or rights.holder(b"", common_name)
        return holder.grant if holder is not None else None


_UNREADABLE: Final = (0, 0, 0)


def _text_of(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
