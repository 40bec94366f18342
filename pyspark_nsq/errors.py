"""Errors of the source and the sink, worded for the person who runs the query: Spark only shows their text."""

from __future__ import annotations


class NsqError(Exception):
    """The base of all errors that this package raises on purpose."""


class BadOption(NsqError):
    """An unknown option, or an invalid value."""


class Unreachable(NsqError):
    """No answer: nothing listens, the answer took too long, or the connection broke."""

    def __init__(self, text: str, address: str = "") -> None:
        super().__init__(text)
        self.address = address


class Refused(NsqError):
    """The server answered with an error."""

    def __init__(self, address: str, status: int, code: str, details: dict[str, object]) -> None:
        super().__init__(f"{address} answers {status} {code}")
        self.status = status
        self.code = code
        self.details = details


class DataLoss(NsqError):
    """Requested messages can't be read any more."""
