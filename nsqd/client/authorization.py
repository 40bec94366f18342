"""The authorization of one client: its secret, its latest grant, and its pending question to an authorization server.

We only use it if clients have to AUTH. AUTH asks for a grant. If the grant has expired by the time of a SUB or a
publish, we ask again, and meanwhile the command is *suspended*: protocol.py stops reading from the client, and checks
the command again once it has the answer.

    AUTH ── ask ──► question ── take ──► granted ── SUB or a publish after the grant has expired ──► ask ...
                        └── no server answered, or it granted nothing: an error, which closes the client
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.quoting import quote
from nsqd.auth.grants import AuthQuestion, Grant

if TYPE_CHECKING:
    from nsqcommon.wire.commands import Command

Ask = Callable[[AuthQuestion], None]  # hands the question to an authorization server as soon as possible


class Suspended(Exception):
    """The command has to wait until an authorization server has answered."""


class Authorization:
    """One client's rights, and the question to fetch them.

    It only hands the question to `ask`. protocol.py pauses the client, and resumes it after the answer.
    """

    __slots__ = ("_ask", "_expires", "_grant", "_is_new", "_question", "_remote_ip", "_secret", "_suspended")

    def __init__(self, ask: Ask, remote_ip: str) -> None:
        self._ask = ask
        self._remote_ip = remote_ip
        self._secret = b""  # the body of AUTH
        self._grant: Grant | None = None
        self._expires = inf
        self._is_new = False  # the grant was fetched for the command that is checked next
        self._question: AuthQuestion | None = None  # the pending one
        self._suspended: Command | None = None  # to resume afterwards; None: AUTH, or the reader still has the line

    @property
    def is_given(self) -> bool:
        """Whether the client was granted anything, even if the grant has expired since then."""
        return self._grant is not None and bool(self._grant.entries)

    @property
    def identity(self) -> str:
        return self._grant.identity if self._grant is not None else ""

    @property
    def identity_url(self) -> str:
        return self._grant.identity_url if self._grant is not None else ""

    def begin(self, secret: bytes) -> None:
        """Store the secret of an AUTH command. Call `ask` next."""
        if self.is_given:
            raise ProtocolError(Fault.INVALID, "AUTH already set")
        self._secret = secret

    def check(self, word: bytes, topic: str, channel: str, command: Command | None, now: float) -> None:
        """Raise ProtocolError if the client isn't allowed to carry out this command.

        Raises Suspended if the grant has expired. In that case, call `ask`; once you have the answer, `take_suspended`
        returns `command`.
        """
        is_new, self._is_new = self._is_new, False
        if not is_new:  # a new grant counts for this command even if it has expired already: we don't ask forever
            if not self.is_given:
                raise ProtocolError(Fault.AUTH_FIRST, b"AUTH required before " + word)
            if now >= self._expires:
                self._suspended = command
                raise Suspended
        if self._grant is None or not self._grant.allows(topic, channel):
            names = quote(topic.encode()) + b" " + quote(channel.encode())
            raise ProtocolError(Fault.UNAUTHORIZED, b"AUTH failed for " + word + b" on " + names)

    def ask(
        self, *, tls: bool, common_name: str, answer: Callable[[Grant | None], None], drop: Callable[[], None]
    ) -> None:
        """Ask for this client's grant. `answer` is called in a later turn, unless `close` is called first."""
        self._question = AuthQuestion(
            self._secret,
            remote_ip=self._remote_ip,
            tls=tls,
            common_name=common_name,
            answer=answer,
            drop=drop,
        )
        self._ask(self._question)

    def take_suspended(self) -> Command | None:
        """Forget the answered question, and return the command to resume, if any."""
        suspended, self._suspended = self._suspended, None
        self._question = None
        return suspended

    def take(self, grant: Grant | None, now: float) -> bytes | None:
        """Keep the grant. Raises ProtocolError if it is None (no server answered), or if the first one is empty.

        Returns the reply to AUTH, or None if the grant only replaces an expired one.
        """
        if grant is None:
            raise ProtocolError(Fault.AUTH_FAILED, "AUTH failed")
        is_first = self._grant is None
        if is_first and not grant.entries:
            raise ProtocolError(Fault.UNAUTHORIZED, "AUTH no authorizations found")
        self._grant = grant
        self._expires = now + grant.ttl
        if is_first:
            return grant.reply
        self._is_new = True
        return None

    def close(self) -> None:
        """Withdraw the pending question, if any.

        The question refers to the client. Dropping it frees the client immediately, without the garbage collector.
        """
        if self._question is not None:
            self._question.waits = False
            self._question = None
