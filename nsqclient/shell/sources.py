"""Where a consumer finds its nsqds: in its arguments and in nsqlookupd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from nsqclient.core.errors import ConfigError
from nsqclient.shell.targets import Target, check_target

TargetT = TypeVar("TargetT", bound=Target)


class Sources(Generic[TargetT]):
    """The caller's nsqds and nsqlookupds, and its two functions for addresses."""

    def __init__(
        self,
        nsqd: Sequence[TargetT],
        lookupd: Sequence[str],
        *,
        resolve: Callable[[str], str] | None,
        discovery_filter: Callable[[Sequence[str]], Sequence[str]] | None,
    ) -> None:
        self.given = {str(target): target for target in nsqd}
        self.lookupd = lookupd
        self._resolve = resolve
        self._filter = discovery_filter

    def check(self) -> None:
        """Raise ConfigError if there is nothing to consume from."""
        if not self.given and not self.lookupd:
            raise ConfigError("nsqd", (), "neither nsqd nor nsqlookupd is given")
        for target in self.given.values():
            check_target(target)

    def chosen(self, listed: Iterable[str]) -> Sequence[str]:
        """Return the listed addresses to use."""
        addresses = list(listed)
        return addresses if self._filter is None else list(self._filter(addresses))

    def target(self, address: str) -> TargetT | str:
        """Return the address to dial."""
        target = self.given.get(address, address)
        return self._resolve(target) if self._resolve is not None and isinstance(target, str) else target
