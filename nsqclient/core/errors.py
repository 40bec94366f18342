"""The errors of this library, and the exceptions with which a handler decides what happens to its message.

They are the same on trio, on asyncio and in plain calls. Only a timeout is not one of them: it raises trio.TooSlowError on
trio, and TimeoutError elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqclient.core.results import CancelResult, RescheduleResult


class NSQError(Exception):
    """The base of all errors caused by nsqd, nsqlookupd, the network, or the use of this library."""


class ConfigError(NSQError, ValueError):
    """A setting cannot be used; the text is NSQ's if NSQ has one."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option = option
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class ConnectError(NSQError):
    """No connection to an nsqd: it refuses, does not answer, or is no nsqd."""


class HandshakeError(ConnectError):
    """nsqd was reached, but the handshake failed."""


class AuthError(HandshakeError):
    """nsqd requires a secret that it was not given, or does not accept the one that it got."""


class TLSRefused(HandshakeError):
    """TLS is required here, but nsqd does not offer it or the TLS handshake failed."""


class ProtocolError(NSQError):
    """nsqd answered with an error. `code` is its first word: `E_BAD_TOPIC`."""

    def __init__(self, code: str, text: str, *, fatal: bool = True) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text  # all of it, including the code
        self.fatal = fatal  # nsqd closes the connection

    def __str__(self) -> str:
        return self.text


class Disconnected(NSQError):
    """The connection was lost, or is not there, when it was needed."""


class Unsupported(NSQError):
    """nsqd cannot do this with the message, for example because it is NSQ's own. The message is still unanswered."""


class PublishError(NSQError):
    """A message was not published, as far as is known."""


class PublishRejected(PublishError):
    """nsqd has refused the message. Nothing was stored."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return self.text


class PublishUnknown(PublishError):
    """The connection was lost before nsqd answered: the message may or may not have been stored."""


class OutcomeUnknown(PublishUnknown):
    """As PublishUnknown, of a publish with a key: made again at the same nsqd with this key, it is stored once."""

    def __init__(self, text: str, key: str) -> None:
        super().__init__(text)
        self.key = key

    def __str__(self) -> str:
        return f"{self.args[0]} (key {self.key})"


class PublishUnsent(PublishError, Disconnected):
    """The connection was lost before nsqd had received the whole message. Nothing was stored."""


class Incomplete(NSQError):
    """Not every nsqd has answered whether it has the message. `result` has the answers of the others.

    An nsqd without an answer may have done it nonetheless. Asking all of them again is safe.
    """

    def __init__(self, result: CancelResult | RescheduleResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return "not known: " + "; ".join(f"{it.address}: {it.reason}" for it in self.result.failures)


class Stopped(NSQError):
    """The consumer or producer has been stopped."""


class Requeue(Exception):
    """Raised by a handler to get its message again after `delay` seconds (None: as configured).

    With `backoff` it counts as a failure, on which the consumer slows down. Without `count` the attempt does not count,
    if nsqd can do that. A message whose last attempt counts is buried instead, as with any other error.
    """

    def __init__(self, delay: float | None = None, backoff: bool = True, *, count: bool = True) -> None:
        super().__init__(delay, backoff, count)
        self.delay = delay
        self.backoff = backoff
        self.count = count


class GiveUp(Exception):
    """Raised by a handler for a message that can never be handled.

    It becomes a dead letter. If nobody handles dead letters, nsqd buries it with the reason, or if it cannot do that,
    the message is finished.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
