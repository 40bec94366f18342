"""The NSQ version that we are compatible with, and the version of this release."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Final

# We report this version to clients, to tools and on /info. They check it to find out which features they may use.
NSQ_VERSION: Final = "1.3.0"

DISTRIBUTION: Final = "nsq-suite"
_CLIENT: Final = "nsqclient"  # released together, with the same version, for people who need only the client


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, for error messages. nsq-suite isn't on PyPI yet."""
    return f"pip install '.[{extra}]', in a checkout of {DISTRIBUTION}"


@cache  # finding the version reads folders, and each scrape of /metrics needs it
def suite_version() -> str:
    """Return our own version, or "unknown" in a source tree that was never installed."""
    from importlib import metadata  # would be a tenth of the time of `import nsqclient`, which needs no version

    for name in (DISTRIBUTION, _CLIENT):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "unknown"


def core_of(module: ModuleType) -> str:
    """Return whether this module runs as pure Python or compiled by mypyc (docs/decisions/0003-compiled-core.md)."""
    return "pure Python" if (module.__file__ or "").endswith((".py", ".pyc")) else "compiled"
