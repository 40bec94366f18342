"""Which nodes are known and not there: nobody may take what is registered now for all that there is. Pure, as lanes.py.

A node is known because it is listed, because nsqlookupd has it or remembers it, or because the offsets have lanes of it.
One that has drained and whose lanes were read to their end is not missing, for there is nothing to read before it is back; nor
is one that was retired and of which the offsets have no lane.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark_nsq.errors import NsqError
from pyspark_nsq.lanes import Lane, Offsets

_NAMED: Final = 3  # in one line


@dataclass(frozen=True, slots=True)
class Departed:
    """What nsqlookupd remembers of a node that is not registered any more."""

    address: str
    node: str  # the id of its data path; empty for NSQ's nsqd
    topics: tuple[str, ...] | None  # None: nobody knows
    has_drained: bool  # it left with its lanes closed
    is_retired: bool = False  # and for good


@dataclass(frozen=True, slots=True)
class Presence:
    """Who is there, and who is not."""

    there: int
    missing: Mapping[str, str]  # an address, or `node ID` where nobody knows it; and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look at the cluster has found."""

    registered: Collection[str] = ()  # addresses
    departed: Collection[Departed] = ()
    silent: Mapping[str, str] = field(default_factory=dict)  # addresses that do not answer, and why
    lanes: Mapping[str, Collection[Lane]] = field(default_factory=dict)  # that are, or were, at an address


def presence(seen: Seen, offsets: Offsets) -> Presence:
    """Who is missing for a query that stands at these offsets."""
    at = {it.address: it for it in seen.departed}
    missing = {
        address: why
        for address, why in sorted(seen.silent.items())
        if address in seen.registered or _owes(at.get(address), seen.lanes.get(address, ()), offsets)
    }
    present = {lane for lanes in seen.lanes.values() for lane in lanes}
    absent = {lane.node for lane in offsets.lanes.keys() - present if not offsets.is_complete(lane)}
    known = {at[address].node for address in missing if address in at}
    # A silent node whose id nobody knows may well be the one that has the lane.
    nameless = sum(not (address in at and at[address].node) for address in missing)
    if len(absent - known) > nameless:
        for node in sorted(absent - known):
            missing[f"node {node}"] = f"node {node}: the offsets have lanes of it, and nobody knows where it is"
    return Presence(len(set(seen.registered) - missing.keys()), missing)


def _owes(departed: Departed | None, lanes: Collection[Lane], offsets: Offsets) -> bool:
    """Whether there may be messages at a silent node, which is not registered, that nobody has read."""
    if departed is not None and not departed.has_drained:
        return True
    owed = {*lanes}
    if departed is not None:
        owed |= {lane for lane in offsets.lanes if lane.node == departed.node}
        if not owed:
            return not departed.is_retired
    return not all(map(offsets.is_complete, owed))


def waited_for(departed: Iterable[Departed]) -> set[str]:
    """The ids of nodes that are away and may come back, so that their lanes are not gone."""
    return {it.node for it in departed if it.node and not it.is_retired}


def check(found: Presence, *, require_all: bool, require: int) -> None:
    """Raises when somebody is missing who has to be there."""
    if require_all and found.missing:
        raise NsqError(f"all nodes have to be there: {told(found.missing)}")
    if found.there < require:
        missing = f": {told(found.missing)}" if found.missing else ""
        raise NsqError(f"{require} nodes have to be there, and {found.there} are{missing}")


def told(missing: Mapping[str, str]) -> str:
    """One line, however many they are."""
    lines = list(missing.values())
    more = f"; and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return "; ".join(lines[:_NAMED]) + more
