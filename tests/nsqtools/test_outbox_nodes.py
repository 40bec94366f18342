"""Which nsqds an outbox's relay knows, whatever its nsqlookupds answer."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from nsqclient import Config
from nsqtools.outbox_nodes import Nodes


class Lookups:
    """Answers with the addresses and failures of its turn."""

    def __init__(self, *answers: tuple[Sequence[str], Sequence[str]]) -> None:
        self._answers = iter(answers)

    async def nodes(self, lookupds: object) -> tuple[list[Any], Sequence[str]]:
        addresses, failures = next(self._answers)
        return [SimpleNamespace(tcp_address=address) for address in addresses], failures


@pytest.mark.parametrize(
    ("second", "known"),
    [
        ((["b:1"], []), ["b:1"]),  # complete: a has left
        (([], []), ["a:1", "b:1"]),
        (([], ["no answer"]), ["a:1", "b:1"]),
        ((["c:1"], ["no answer"]), ["c:1", "a:1", "b:1"]),
    ],
)
def test_only_a_complete_answer_leaves_a_node_out(
    second: tuple[list[str], list[str]], known: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqtools.outbox_nodes._LIST_EVERY", 0.0)

    async def main() -> None:
        async with trio.open_nursery() as tasks:
            nodes = Nodes([], ["127.0.0.1:4161"], Config(), tasks)
            nodes._queries = Lookups((["a:1", "b:1"], []), second)  # type: ignore[assignment]  # a fake
            await nodes._list()
            await nodes._list()
            assert nodes._known == known

    trio.run(main)
