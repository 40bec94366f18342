"""What the parts of the ledger share."""

from __future__ import annotations

from typing import NamedTuple


class Violation(AssertionError):
    """A promise was broken."""


class Marks(NamedTuple):
    """What the journal certainly has: everything up to `urgent`, but FINs and first deliveries only up to `lazy`."""

    urgent: int
    lazy: int
