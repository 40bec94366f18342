"""Decides which nodes are missing: known, but without an answer. Pure, like lanes.py.

The registered nodes may not be all: one that is down may have messages that we can't see. A node is known because the
options list it, because nsqlookupd lists or remembers it, or because the offsets have lanes of it. A node that has
drained, and whose lanes were read to their end, isn't missing: it has nothing to read until it is back. The same is
true for a retired node without lanes in the offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark_nsq.errors import NsqError
from pyspark_nsq.lanes import Lane, Offsets

_NAMED: Final = 3  # nodes, in one line of text


@dataclass(frozen=True, slots=True)
class Departed:
    """A node that isn't registered any more, as remembered by nsqlookupd."""

    address: str
    node: str  # id of its data path; empty for NSQ's own nsqd
    topics: tuple[str, ...] | None  # None: unknown
    has_drained: bool  # it left with its lanes closed
    is_retired: bool = False  # it left for good


@dataclass(frozen=True, slots=True)
class Presence:
    """Which nodes answer a query, and which are missing."""

    there: int  # how many registered nodes answer
    missing: Mapping[str, str]  # why, by address, or by `node ID` if the address is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The result of a look at the cluster."""

    registered: Collection[str] = ()  # addresses
    departed: Collection[Departed] = ()
    silent: Mapping[str, str] = field(default_factory=dict)  # addresses that don't answer, and why
    lanes: Mapping[str, Collection[Lane]] = field(default_factory=dict)  # present and former lanes at each address


def presence(seen: Seen, offsets: Offsets) -> Presence:
    """Return which nodes are missing for a query at these offsets."""
    at = {it.address: it for it in seen.departed}
    missing = {
        address: why
        for address, why in sorted(seen.silent.items())
        if address in seen.registered or _owes(at.get(address), seen.lanes.get(address, ()), offsets)
    }
    present = {lane for lanes in seen.lanes.values() for lane in lanes}
    absent = {lane.node for lane in offsets.lanes.keys() - present if not offsets.is_complete(lane)}
    known = {at[address].node for address in missing if address in at}
    # A silent node with an unknown id may be the one that has the lane.
    nameless = sum(not (address in at and at[address].node) for address in missing)
    if len(absent - known) > nameless:
        for node in sorted(absent - known):
            missing[f"node {node}"] = f"node {node}: the offsets have lanes of it, and its address is not known"
    return Presence(len(set(seen.registered) - missing.keys()), missing)


def _owes(departed: Departed | None, lanes: Collection[Lane], offsets: Offsets) -> bool:
    """Return True if a silent node that isn't registered may have messages that the query hasn't read."""
    if departed is not None and not departed.has_drained:
        return True
    owed = {*lanes}
    if departed is not None:
        owed |= {lane for lane in offsets.lanes if lane.node == departed.node}
        if not owed:
            return not departed.is_retired
    return not all(map(offsets.is_complete, owed))


def waited_for(departed: Iterable[Departed]) -> set[str]:
    """Return the ids of nodes that have left and may come back, so that their lanes don't count as gone."""
    return {it.node for it in departed if it.node and not it.is_retired}


def check(found: Presence, *, require_all: bool, require: int) -> None:
    """Raise when a required node is missing."""
    if require_all and found.missing:
        raise NsqError(f"all nodes have to be there: {in_one_line(found.missing)}")
    if found.there < require:
        missing = f": {in_one_line(found.missing)}" if found.missing else ""
        raise NsqError(f"{require} nodes have to be there, and {found.there} are{missing}")


def in_one_line(missing: Mapping[str, str]) -> str:
    """Name the first three missing nodes with their reasons, and say how many more are missing."""
    lines = list(missing.values())
    more = f"; and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return "; ".join(lines[:_NAMED]) + more
