"""Finds a message by its id: asks each node where its history has it. This reads no message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from nsqadmin import numbers
from nsqadmin.messages.lists import whole_in
from nsqadmin.messages.reading import log_id_in, silence, why
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.upstream.client import Upstream

_PATIENCE: Final = 3.0  # seconds for one node
_MOST: Final = 100  # places on one node
_NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError)
_WORDS: Final = {"NOT_FOUND": "it cannot find messages by id: it is a Go nsqd or an older version"}


@dataclass(frozen=True, slots=True, order=True)
class MessagePlace:
    """Where a message can be read."""

    topic: str
    node: str
    sequence: int
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlaces:
    places: tuple[MessagePlace, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()  # nodes that weren't searched, or not to the end, and why


async def find_message(upstream: Upstream, snapshot: Snapshot, id: str, identity: Identity) -> FoundPlaces:
    """Return where the nodes have the message with this id, as far as the user may see. On trio."""
    places: list[MessagePlace] = []
    missing: dict[str, str] = {}

    async def ask(node: str) -> None:
        problem = silence(snapshot, node)
        if not problem:
            problem = f"it has sent nothing for {_PATIENCE:.0f} s"
            with trio.move_on_after(_PATIENCE):
                problem = await _ask(upstream, node, id, identity, places)
        if problem:
            missing[node] = identity.quoted(problem)

    async with trio.open_nursery() as nursery:
        for node in snapshot.nodes:
            nursery.start_soon(ask, node.address)
    return FoundPlaces(places=tuple(sorted(places)), missing=tuple(sorted(missing.items())))


async def _ask(upstream: Upstream, node: str, id: str, identity: Identity, places: list[MessagePlace]) -> str:
    """Add the places on one node. Return why it wasn't searched to the end; "" if it was."""
    try:
        raw = await upstream.get_json(node, f"/message?id={id}")
        found = [_place_in(node, line) for line in raw["messages"][:_MOST]]
        places += [it for it in found if identity.sees(it.topic)]
        unread = [topic for topic in raw["unread"] if identity.sees(str(topic))]
    except UpstreamError as error:
        return "it does not answer" if error.timed_out else why(error, _WORDS)
    except _NONSENSE as error:
        return f"its answer cannot be read: {error!r}"
    return f"it could not read the history of {numbers.several(len(unread), 'topic')}" if unread else ""


def _place_in(node: str, line: Any) -> MessagePlace:
    topic = line["topic"]
    if not isinstance(topic, str):
        raise TypeError(f"{type(topic).__name__} is no topic")
    return MessagePlace(topic, node, whole_in(line["sequence"]), log_id_in(line["log"]))
