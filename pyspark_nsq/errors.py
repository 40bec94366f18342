"""What can go wrong, in words for the one who runs the query. Spark shows the text of the exception, and no more of it."""

from __future__ import annotations


class NsqError(Exception):
    """Everything that this package raises on purpose."""


class BadOption(NsqError):
    """An option is unknown or cannot be understood."""


class Unreachable(NsqError):
    """There is no answer: nothing listens, or not in time, or the connection broke."""

    def __init__(self, text: str, address: str = "") -> None:
        super().__init__(text)
        self.address = address


class Refused(NsqError):
    """An answer that is an error."""

    def __init__(self, address: str, status: int, code: str, details: dict[str, object]) -> None:
        super().__init__(f"{address} answers {status} {code}")
        self.status = status
        self.code = code
        self.details = details


class DataLoss(NsqError):
    """Messages that were to be read are gone, or will be."""
