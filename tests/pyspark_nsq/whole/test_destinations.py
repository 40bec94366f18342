"""Which nsqds the sink publishes to, as nsqlookupds list them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_nsq.cluster import nodes_to_publish_to
from pyspark_nsq.errors import NsqError, Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.options import Where


class Lookups:
    """Takes the place of `Http`."""

    def __init__(self, answers: dict[str, list[dict[str, Any]] | None]) -> None:
        self._answers = answers

    def json(self, address: str, target: str, *, is_lookupd: bool) -> dict[str, Any]:
        if (producers := self._answers[address]) is None:
            raise Unreachable(f"{address} cannot be reached")
        return {"producers": producers}


def node(port: int, **more: object) -> dict[str, Any]:
    return {"broadcast_address": "h", "http_port": port, "topics": [], "tombstones": [], **more}


def found(**answers: list[dict[str, Any]] | None) -> list[str]:
    return nodes_to_publish_to(Where(tuple(answers), ()), cast(Http, Lookups(dict(answers))))


def test_all_that_are_listed() -> None:
    assert found(a=[node(1), node(2)], b=[node(2), node(3)]) == ["h:1", "h:2", "h:3"]
    assert found(a=None, b=[node(1)]) == ["h:1"]
    with pytest.raises(NsqError):
        found(a=None, b=None)


@pytest.mark.parametrize("state", ["draining", "full", "unhealthy"])
def test_one_with_a_state_only_if_there_is_no_other(state: str) -> None:
    assert found(a=[node(1, state=state), node(2)], b=[node(1)]) == ["h:2"]
    assert found(a=[node(1, state=state), node(2, state="full")]) == ["h:1", "h:2"]
