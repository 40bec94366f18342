"""What one client may do where clients have to AUTH: its secret, what was granted last, and the question that is out.

A command may need an answer from elsewhere: AUTH itself, and a SUB or a publish when what was answered before has expired.
Such a command is *suspended*: the client asks its question, reads nothing, and decides the command anew when the answer is there.

    AUTH ── ask ──► question ── take ──► granted ── the time it is granted for is over, SUB or publish ──► ask ...
                        └── nobody has answered, or nothing is granted: an error, which ends the client
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from common.wire.faults import Fault, ProtocolError
from common.wire.quoting import quote
from nsqd.auth.grants import Grant, Question

if TYPE_CHECKING:
    from common.wire.commands import Command

Ask = Callable[[Question], None]  # an authorization server, as soon as it can be


class Suspended(Exception):
    """The command cannot be decided before a question is answered."""


class Authorization:
    """Touches only its own question, which it hands to `ask`. The client that has it stops reading, and goes on."""

    __slots__ = ("_ask", "_expires", "_grant", "_is_new", "_question", "_remote_ip", "_secret", "_suspended")

    def __init__(self, ask: Ask, remote_ip: str) -> None:
        self._ask = ask
        self._remote_ip = remote_ip
        self._secret = b""  # what the client has said with AUTH
        self._grant: Grant | None = None
        self._expires = inf
        self._is_new = False  # the grant was fetched for the command that is being decided
        self._question: Question | None = None  # its answer is waited for
        self._suspended: Command | None = None  # what goes on then; None: AUTH, or a line that the reader still has

    @property
    def is_given(self) -> bool:
        """Whether the client is authorized for anything; perhaps no longer, see `check`."""
        return self._grant is not None and bool(self._grant.entries)

    @property
    def identity(self) -> str:
        return self._grant.identity if self._grant is not None else ""

    @property
    def identity_url(self) -> str:
        return self._grant.identity_url if self._grant is not None else ""

    def begin(self, secret: bytes) -> None:
        """Take the secret that the client has said with AUTH. The client asks next."""
        if self.is_given:
            raise ProtocolError(Fault.INVALID, "AUTH already set")
        self._secret = secret

    def check(self, word: bytes, topic: str, channel: str, command: Command | None, now: float) -> None:
        """Refuse what is not granted, with a ProtocolError.

        Raises Suspended if that has to be asked anew; then `command` is what `take` returns when it is answered.
        """
        is_new, self._is_new = self._is_new, False
        if not is_new:
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
        """Ask who this client is. `answer` is called in a later turn, unless `close` comes first."""
        self._question = Question(
            self._secret,
            remote_ip=self._remote_ip,
            tls=tls,
            common_name=common_name,
            answer=answer,
            drop=drop,
        )
        self._ask(self._question)

    def take_suspended(self) -> Command | None:
        """Return the command that goes on, now that the question is answered."""
        suspended, self._suspended = self._suspended, None
        self._question = None
        return suspended

    def take(self, grant: Grant | None, now: float) -> bytes | None:
        """Keep what was granted; None: no server has answered. Return the reply to AUTH, or None if this was asked anew."""
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
        """Wait for nothing any more. The question refers to the client, which must not wait for the garbage collector."""
        if self._question is not None:
            self._question.waits = False
            self._question = None
