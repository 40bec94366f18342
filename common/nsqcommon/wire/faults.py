"""Protocol errors, which we report to the peer, and their form on the wire."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """The codes that begin an error frame."""

    INVALID = "E_INVALID"
    BAD_PROTOCOL = "E_BAD_PROTOCOL"
    BAD_BODY = "E_BAD_BODY"
    BAD_TOPIC = "E_BAD_TOPIC"
    BAD_CHANNEL = "E_BAD_CHANNEL"
    BAD_MESSAGE = "E_BAD_MESSAGE"
    PUB_FAILED = "E_PUB_FAILED"
    DPUB_FAILED = "E_DPUB_FAILED"
    MPUB_FAILED = "E_MPUB_FAILED"
    SUB_FAILED = "E_SUB_FAILED"
    IDENTIFY_FAILED = "E_IDENTIFY_FAILED"
    AUTH_DISABLED = "E_AUTH_DISABLED"
    AUTH_FAILED = "E_AUTH_FAILED"
    AUTH_FIRST = "E_AUTH_FIRST"
    AUTH_ERROR = "E_AUTH_ERROR"
    UNAUTHORIZED = "E_UNAUTHORIZED"
    FIN_FAILED = "E_FIN_FAILED"
    REQ_FAILED = "E_REQ_FAILED"
    TOUCH_FAILED = "E_TOUCH_FAILED"
    BURY_FAILED = "E_BURY_FAILED"


class ProtocolError(Exception):
    """The peer broke the protocol. A fatal error ends the connection after its error frame.

    The detail is in bytes, because it often quotes the peer, in an encoding that we don't know.
    """

    def __init__(self, fault: Fault, detail: str | bytes = b"", *, fatal: bool = True) -> None:
        # "replace", because a text from the operating system may hold characters that UTF-8 can't encode, and reporting
        # an error must not fail.
        self.detail = detail.encode("utf-8", "replace") if isinstance(detail, str) else detail
        self.fault = fault
        self.fatal = fatal
        super().__init__(fault, self.detail)

    @property
    def data(self) -> bytes:
        """The data of the error frame: code, space, detail. E_BAD_PROTOCOL never has a detail."""
        code = self.fault.value.encode()
        if self.fault is Fault.BAD_PROTOCOL or not self.detail:
            return code
        return b"%b %b" % (code, self.detail)

    def __str__(self) -> str:
        return self.data.decode("utf-8", "backslashreplace")
