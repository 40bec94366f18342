"""What can go wrong, and what a handler raises to say what becomes of its message."""

from __future__ import annotations


class NSQError(Exception):
    """What this library raises because of nsqd, nsqlookupd or the network between."""


class ConfigError(NSQError, ValueError):
    """A setting cannot be used; the text is NSQ's where NSQ has one."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option = option
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class ConnectError(NSQError):
    """There is no connection to an nsqd: it refuses, does not answer, or is no nsqd."""


class HandshakeError(ConnectError):
    """nsqd was reached, and the two do not come together."""


class AuthError(HandshakeError):
    """nsqd wants a secret that it was not given, or does not accept it."""


class TLSRefused(HandshakeError):
    """TLS is required here, and nsqd does not grant it, or the handshake of TLS fails."""


class ProtocolError(NSQError):
    """nsqd answered with an error. `code` is its first word: `E_BAD_TOPIC`."""

    def __init__(self, code: str, text: str, *, fatal: bool = True) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text  # all of it, the code included
        self.fatal = fatal

    def __str__(self) -> str:
        return self.text


class Disconnected(NSQError):
    """The connection has gone while something was asked of it that needs one."""


class PublishError(NSQError):
    """A message was not published, as far as is known."""


class PublishRejected(PublishError):
    """nsqd has refused it. Nothing was stored."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return self.text


class PublishUnknown(PublishError):
    """The connection was lost before nsqd's answer came: the message may be stored, or may not."""


class PublishUnsent(PublishError, Disconnected):
    """The connection was lost before nsqd had all of it. Nothing was stored."""


class Stopped(NSQError):
    """The consumer or producer has been stopped."""


class Requeue(Exception):
    """A handler raises this to have its message again after `delay` seconds (None: as the configuration says)."""

    def __init__(self, delay: float | None = None, backoff: bool = True) -> None:
        super().__init__(delay, backoff)
        self.delay = delay
        self.backoff = backoff


class GiveUp(Exception):
    """A handler raises this for a message that will never work: it goes where dead letters go, and is finished."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
