"""Which NSQ we are compatible with, and which release of ours this is."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Final

# What clients, tools and /info are told: they compare it to know what they may ask for.
NSQ_VERSION: Final = "1.3.0"

DISTRIBUTION: Final = "nsq-suite"


@cache  # finding it reads folders, and each scrape of /metrics asks
def suite_version() -> str:
    """Our own version; "unknown" when run from a tree that was never installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def core_of(module: ModuleType) -> str:
    """Whether this module runs as it was written, or as mypyc has compiled it (docs/decisions/0003-compiled-core.md)."""
    return "pure Python" if (module.__file__ or "").endswith((".py", ".pyc")) else "compiled"
