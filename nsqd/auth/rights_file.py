"""Loads `--rights-file` at startup, and again whenever it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqcommon.watched_file import WatchedFile
from nsqd.auth.rights import Rights, RightsError, parse_rights

if TYPE_CHECKING:
    from nsqd.auth.grants import AuthQuestion, Grant


class RightsFile:
    """The rights in force. `trust_common_names` enables `common_name`. Only set it if TLS verifies the clients."""

    def __init__(self, path: str, *, trust_common_names: bool) -> None:
        """Read the file. Raises StartupError."""
        self._names_count = trust_common_names
        self._file = WatchedFile("rights file", path, self._parse)
        self.follow = self._file.follow

    @property
    def now(self) -> Rights:
        return self._file.now

    def _parse(self, text: str) -> Rights:
        rights = parse_rights(text)
        if not self._names_count and any(holder.common_name for holder in rights.holders):
            raise RightsError("a common_name needs --tls-client-auth-policy=require-verify, or anybody could claim it")
        return rights

    def grant(self, question: AuthQuestion) -> Grant | None:
        """Return the grant for AUTH over TCP, or None if neither the token nor the certificate is in the file."""
        common_name = question.common_name if self._names_count else ""
        rights = self.now
        holder = rights.holder(question.secret, "") or rights.holder(b"", common_name)
        return holder.grant if holder is not None else None
