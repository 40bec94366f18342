"""Which NSQ we are compatible with, and which release of ours this is."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Final

# The version that clients, tools and /info get. They compare it to find out which features they may use.
NSQ_VERSION: Final = "1.3.0"

DISTRIBUTION: Final = "nsq-suite"
_CLIENT: Final = "nsqclient"  # released with it, with the same version, for those who need nothing else


@cache  # finding the version reads folders, and each scrape of /metrics asks for it
def suite_version() -> str:
    """Return our own version, or "unknown" when running from a tree that was never installed."""
    from importlib import metadata  # a tenth of the time of `import nsqclient`, which does not need it

    for name in (DISTRIBUTION, _CLIENT):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "unknown"


def core_of(module: ModuleType) -> str:
    """Return whether this module runs as pure Python or compiled by mypyc (docs/decisions/0003-compiled-core.md)."""
    return "pure Python" if (module.__file__ or "").endswith((".py", ".pyc")) else "compiled"
