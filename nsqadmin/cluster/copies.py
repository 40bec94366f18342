"""The copies that nodes keep of their data paths in an object store (nsqd's --remote), and which node takes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from nsqadmin.cluster.model import RemoteCopy
from nsqadmin.cluster.sane import check_count, check_numbers, text

_MOST_ASIDES: Final = 1000
_MOST_STANDBYS: Final = 100
_ADOPTED: Final = "adopt"


class Answer(Protocol):
    """A node's last report."""

    @property
    def remote(self) -> RemoteCopy | None: ...
    @property
    def is_silent(self) -> bool: ...


def read_copy(raw: Any) -> RemoteCopy | None:
    """Read the member `remote` of a node's answer to /stats. None: it keeps no copy."""
    if not isinstance(raw, dict):
        return None
    numbers = [raw.get(name) or 0 for name in ("behind_seconds", "behind_bytes", "waiting_publishes")]
    check_numbers(*numbers)
    asides = raw.get("aside") or ()
    check_count(len(asides), _MOST_ASIDES, "folders aside")
    standbys = raw.get("watched_by") or ()
    check_count(len(standbys), _MOST_STANDBYS, "standbys")
    started = raw.get("started")
    return RemoteCopy(
        store=text(raw.get("store")),
        name=text(raw.get("name")),
        state=text(raw.get("state")),
        refusal=text(raw.get("refusal")),
        behind_seconds=float(numbers[0]),
        behind_bytes=int(numbers[1]),
        waiting_publishes=int(numbers[2]),
        is_adopted=isinstance(started, dict) and started.get("decision") == _ADOPTED,
        asides=tuple(text(it) for it in asides),
        wants_standby=raw.get("standby") is True,
        standbys=tuple(text(it) for it in standbys),
    )


def successors_of(answers: Mapping[str, Answer]) -> dict[str, str]:
    """Return the successor of each silent node, by address: the node that took over its copy.

    For example, if the machine of a:4151 is lost, b:4151 has its messages from then on, so we must not count the last
    numbers of a:4151 any more.
    """
    owners = {
        answer.remote.key: address
        for address, answer in answers.items()
        if not answer.is_silent and answer.remote is not None and answer.remote.is_owned
    }
    return {
        address: owners[answer.remote.key]
        for address, answer in answers.items()
        if answer.is_silent and answer.remote is not None and answer.remote.key in owners
    }
