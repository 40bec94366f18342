"""Asks nodes one question each while someone waits for the page, and says of each node that is silent why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Node

T = TypeVar("T")
_AT_ONCE: Final = 16


async def ask_each(
    nodes: Sequence[Node],
    ask: Callable[[Node], Awaitable[T]],
    unanswered: Callable[[Node, str], T],
    *,
    patience: float,
) -> tuple[T, ...]:
    """Return each node's answer, in the order of the nodes, after `patience` seconds at most.

    `unanswered` makes the answer of a node that is silent, or too slow, from the reason.
    """
    limiter = trio.CapacityLimiter(_AT_ONCE)
    told = {it.address: unanswered(it, _silence(it, patience)) for it in nodes}

    async def note(node: Node) -> None:
        async with limiter:
            told[node.address] = await ask(node)

    with trio.move_on_after(patience):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                if node.is_reachable:
                    nursery.start_soon(note, node)
    return tuple(told[node.address] for node in nodes)


def _silence(node: Node, patience: float) -> str:
    if node.is_reachable:
        return f"it has not answered within {patience:g} s"
    return "it does not answer"  # the error itself is on the node's page
