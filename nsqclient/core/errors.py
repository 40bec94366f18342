"""The errors of this library, and the exceptions that a handler raises to requeue or give up a message.

They are the same on trio, on asyncio and in plain calls. Only timeouts differ: trio.TooSlowError on trio, TimeoutError
elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqclient.core.results import CancelResult, RescheduleResult


class NSQError(Exception):
    """The base of all errors caused by nsqd, nsqlookupd, the network, or the use of this library."""


class ConfigError(NSQError, ValueError):
    """An invalid setting; with NSQ's text if NSQ has one."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option = option
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class ConnectError(NSQError):
    """No connection to an nsqd: it refuses, doesn't answer, or isn't an nsqd."""


class HandshakeError(ConnectError):
    """nsqd was reached, but the handshake failed."""


class AuthError(HandshakeError):
    """nsqd requires a secret and got none, or doesn't accept the one it got."""


class TLSRefused(HandshakeError):
    """TLS is required here, but nsqd doesn't offer it or the TLS handshake failed."""


class ProtocolError(NSQError):
    """nsqd answered with an error. `code` is its first word: `E_BAD_TOPIC`."""

    def __init__(self, code: str, text: str, *, fatal: bool = True) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text  # the whole answer, with the code
        self.fatal = fatal  # nsqd closes the connection

    def __str__(self) -> str:
        return self.text


class Disconnected(NSQError):
    """The connection is lost, or was never there."""


class Unsupported(NSQError):
    """This nsqd can't do that, for example because it is NSQ's own. A message stays unanswered."""


class PublishError(NSQError):
    """A message was not published, as far as we know."""


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
    """PublishUnknown for a publish with a key: repeat it at the same nsqd with this key, and it is stored once."""

    def __init__(self, text: str, key: str) -> None:
        super().__init__(text)
        self.key = key

    def __str__(self) -> str:
        return f"{self.args[0]} (key {self.key})"


class PublishUnsent(PublishError, Disconnected):
    """The connection was lost before nsqd had received the whole message. Nothing was stored."""


class Incomplete(NSQError):
    """Some nsqds didn't answer. `result` has the answers of the others.

    An nsqd without an answer may still have done it. You can safely ask all of them again.
    """

    def __init__(self, result: CancelResult | RescheduleResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return "not known: " + "; ".join(f"{it.address}: {it.reason}" for it in self.result.failures)


class Stopped(NSQError):
    """The consumer or producer has been stopped."""


class Requeue(Exception):
    """Raise it in a handler to get the message again after `delay` seconds (None: as configured).

    With `backoff` it counts as a failure, which slows the consumer down. Without `count` the attempt doesn't count, if
    nsqd can do that. If the attempt counts and was the last one, the message is buried, as with any other error.
    """

    def __init__(self, delay: float | None = None, backoff: bool = True, *, count: bool = True) -> None:
        super().__init__(delay, backoff, count)
        self.delay = delay
        self.backoff = backoff
        self.count = count


class GiveUp(Exception):
    """Raise it in a handler for a message that can never succeed.

    It becomes a dead letter. Without a handler for dead letters, nsqd buries it with the reason, or if it can't, the
    message is finished.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
