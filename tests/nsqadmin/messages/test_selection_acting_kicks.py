"""What is said about a node that was asked to kick or discard, and has not answered or has refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from nsqadmin.messages.buried_actions import BuriedPlan, Share, Taken, Verb, Wanted
from nsqadmin.messages.selection_acting import act
from nsqadmin.messages.selection_plan import LeftOut, result_of
from nsqadmin.upstream.client import UpstreamError

ANSWERS = "n1:4151"
OTHER = "n2:4151"
NO_ANSWER = "asked, no answer: it may have done it, or still do it"


class Nodes:
    """Two nodes: one answers, the other does so only for its first requests."""

    def __init__(self, failure: Exception | str, *, after: int = 0) -> None:
        self.asked: list[str] = []
        self.targets: list[str] = []
        self._failure = failure
        self._left = after

    async def post(self, node: str, target: str, _: bytes) -> bytes:
        self.asked.append(node)
        self.targets.append(target)
        if node == OTHER and not self._left:
            if isinstance(self._failure, str):
                return self._failure.encode()
            raise self._failure
        self._left -= node == OTHER
        return json.dumps({"kicked": target.count("&id=") or 5, "job": None, "kick": 7}).encode()


def take(nodes: Nodes, *shares: Share, force: bool = False) -> dict[str, Taken]:
    ids = tuple((share.node, id) for share in shares for id in share.ids)
    wanted = Wanted(verb=Verb.KICK, ids=ids, force=force)
    plan = BuriedPlan(wanted=wanted, topic="t", channel="c", shares=shares)
    upstream: Any = nodes
    results = trio.run(act, plan, upstream, lambda _, __: None)
    return {it.node: it for it in results}


@pytest.mark.parametrize(
    ("failure", "says", "may_follow"),
    [
        (UpstreamError("timeout awaiting response headers"), NO_ANSWER, True),
        (UpstreamError("HTTP 500", status=500), NO_ANSWER, True),
        (UpstreamError("dial tcp 127.0.0.1:1: connect: connection refused"), "nothing listens at its address", False),
        (UpstreamError("HTTP 404", status=404, body=b'{"message":"NOT_FOUND"}'), "it cannot bury messages", False),
        ("no JSON", "its answer cannot be read", False),
        ('{"kicked":-1,"job":null}', "its answer cannot be read", False),
    ],
)
def test_a_node_that_does_not_say_that_it_kicked_is_no_success(
    failure: Exception | str, says: str, may_follow: bool
) -> None:
    taken = take(Nodes(failure), Share(node=ANSWERS, count=5), Share(node=OTHER, count=9))
    assert (taken[ANSWERS].done, taken[ANSWERS].error) == (5, "")
    assert says in taken[OTHER].error
    assert (taken[OTHER].asked, taken[OTHER].done, taken[OTHER].may_follow) == (9, 0, may_follow)
    assert result_of(list(taken.values())) == "partly"


def test_what_a_node_did_before_it_fell_silent_stays_counted_and_it_is_not_asked_further() -> None:
    ids = tuple(f"{number:016x}" for number in range(500))  # three requests
    nodes = Nodes(UpstreamError("timeout awaiting response headers"), after=1)
    (taken,) = take(nodes, Share(node=OTHER, count=500, ids=ids)).values()
    assert (taken.asked, taken.done, taken.error, taken.may_follow) == (500, 200, NO_ANSWER, True)
    assert taken.kick == 7  # what was kicked can be taken back
    assert nodes.asked == [OTHER, OTHER]
    assert result_of([taken]) == "partly"


IDS = tuple(f"{number:016x}" for number in range(500))  # three requests


def test_a_kick_of_several_requests_that_has_no_room_is_not_begun() -> None:
    nodes = Nodes("")
    (taken,) = take(nodes, Share(node=ANSWERS, count=500, ids=IDS, room=450)).values()
    assert (taken.done, nodes.asked) == (0, [])
    assert "the channel has no room for them" in taken.error


def test_force_is_a_part_of_each_request() -> None:
    nodes = Nodes("")
    (taken,) = take(nodes, Share(node=ANSWERS, count=500, ids=IDS, room=450), force=True).values()
    assert (taken.done, taken.error) == (500, "")
    assert [target.count("&force=true") for target in nodes.targets] == [1, 1, 1]
    take(nodes, Share(node=ANSWERS, count=5), force=True)
    assert "&limit=5&force=true" in nodes.targets[-1]
    take(nodes, Share(node=ANSWERS, count=5))
    assert "force" not in nodes.targets[-1]


def test_a_refusal_for_lack_of_room_says_what_to_do() -> None:
    full = UpstreamError("HTTP 409", status=409, body=b'{"message":"FULL","fits":4}')
    (taken,) = take(Nodes(full), Share(node=OTHER, count=9)).values()
    assert "kick fewer, wait until consumers have made room, or use force" in taken.error


def test_where_nothing_was_done_it_has_failed() -> None:
    assert result_of([Taken(node=OTHER, asked=9, error=NO_ANSWER, may_follow=True)]) == "failed"
    assert result_of([], [LeftOut(node=OTHER, why="does not answer")]) == "failed"
    assert result_of([Taken(node=ANSWERS, asked=0)]) == "ok"
