"""Which NSQ we are compatible with, and which release of ours this is."""

from __future__ import annotations

from importlib import metadata
from typing import Final

# What clients, tools and /info are told: they compare it to know what they may ask for.
NSQ_VERSION: Final = "1.3.0"

DISTRIBUTION: Final = "nsq-suite"


def suite_version() -> str:
    """Our own version; "unknown" when run from a tree that was never installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
