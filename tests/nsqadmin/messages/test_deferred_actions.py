"""What a cancel or a move of deferred messages would do, and what is said about a node that does not say what it did."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from nsqadmin.cluster.model import Paused
from nsqadmin.messages.deferred import DEFERRED, NodeDeferred
from nsqadmin.messages.deferred_actions import (
    Chosen,
    DeferredPlan,
    Recalled,
    RecallVerb,
    RecallWanted,
    parse_when,
    plan_deferred,
)
from nsqadmin.messages.lists import BadRequest, Summary
from nsqadmin.messages.selection import parse_selection
from nsqadmin.messages.selection_acting import act
from nsqadmin.messages.selection_plan import result_of
from nsqadmin.upstream.client import UpstreamError
from tests.support.picture import channel, channel_node, client

NOW = 1_772_366_400.0  # 2026-03-01T12:00:00Z
SILENT = NodeDeferred(node="n2:4151", count=40, log="b", error="it does not answer")


def planned(messages: str, verb: RecallVerb = RecallVerb.CANCEL, **more: Any) -> DeferredPlan:
    summary = Summary(nodes=(NodeDeferred(node="n1:4151", count=9, log="a"), SILENT))
    on = channel(*(channel_node(it, clients=(client(it),)) for it in ("n1:4151", "n2:4151")), **more.pop("channel", {}))
    return plan_deferred(on, summary, Chosen(selection=parse_selection(messages)), RecallWanted(verb=verb, **more))


def words(plan: DeferredPlan) -> str:
    return " ".join(it.text for it in plan.consequences)


@pytest.mark.parametrize(
    ("text", "delay"),
    [("now", 0), ("0", 0), (" 10m ", 600), ("1h30m", 5400), ("2d", 172_800), ("2026-03-01T12:00:30Z", 30),
     ("2026-03-01T12:01", 60), ("2026-03-01T14:00:00+01:00", 3600)],
)  # fmt: skip
def test_when_messages_are_to_be_due(text: str, delay: float) -> None:
    assert parse_when(text, NOW) == delay


@pytest.mark.parametrize("text", ["", "soon", "-5m", "2026-03-01T11:59:59Z", "10", "99999d", "2026-13-01T00:00:00Z"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_when(text, NOW)


def test_a_cancel_says_that_it_is_final_and_a_move_who_gets_the_messages() -> None:
    cancel = planned("1-3@n1:4151@a")
    assert cancel.title == "Cancel 3 deferred messages of t/c"
    assert "This cannot be undone" in words(cancel)
    assert [(it.node, it.log, it.count) for it in cancel.shares] == [("n1:4151", "a", 3)]
    assert cancel.wanted.messages == "1-3@n1:4151@a"
    now = planned("1@n1:4151@a", RecallVerb.DUE, delay=0.0)
    assert now.title == "Make 1 deferred message of t/c due now"
    assert "Its consumers will receive them" in words(now)
    assert "cannot be undone" not in words(now)
    paused = planned("1@n1:4151@a", RecallVerb.DUE, delay=0.0, channel={"paused": Paused.YES})
    assert "The channel is paused" in words(paused)
    assert "They are due at once, in this channel only. The channel is paused" in words(
        planned("1-2@n1:4151@a", RecallVerb.DUE, delay=0.0, channel={"paused": Paused.YES})
    )
    assert "They wait until then" in words(planned("1-2@n1:4151@a", RecallVerb.DUE, delay=60.0))
    assert planned("1@n1:4151@a", RecallVerb.DUE).title.startswith("Change the due time of 1 deferred message")


def test_a_plan_names_the_first_messages_and_speaks_of_one_as_it() -> None:
    one = planned("22@n1:4151@a")
    assert one.shares[0].sequences == "22"
    assert words(one) == (
        "No consumer of this channel will ever receive it. This cannot be undone. "
        "Other channels of the topic still deliver it. "
        "If it becomes due before you confirm, this still works, unless a consumer already has it."
    )
    assert "It waits until then" in words(planned("22@n1:4151@a", RecallVerb.DUE, delay=60.0))
    many = planned("1-2@n1:4151@a 5@n1:4151@a 1000-1007@n1:4151@a")
    assert many.shares[0].sequences == "1, 2, 5, 1,000, 1,001 and 6 more"
    assert "Those that a consumer already has are left alone" in words(many)


def test_a_node_that_does_not_answer_is_left_out_and_one_of_another_channel_is_refused() -> None:
    both = planned("1@n1:4151@a 5-6@n2:4151@b")
    assert (both.count, [(it.node, it.last_known) for it in both.left_out]) == (1, [("n2:4151", 2)])
    assert "It is not asked, and 2 of these messages stay as they are" in words(both)
    assert "No other node has any of these messages" in words(planned("5@n2:4151@b"))
    with pytest.raises(BadRequest, match="evil:80"):
        planned("1@evil:80")


class Nodes:
    """A node that answers so many requests, and then fails."""

    def __init__(self, failure: Exception | str, answers: int = 0) -> None:
        self.asked: list[str] = []
        self._failure = failure
        self._left = answers

    async def post(self, node: str, target: str, _: bytes) -> bytes:
        self.asked.append(target)
        self._left -= 1
        if self._left >= 0:
            return json.dumps({"cancelled": 5, "in_flight": 1, "buried": 0, "done": 2, "unknown": 0}).encode()
        if isinstance(self._failure, str):
            return self._failure.encode()
        raise self._failure


def recalled(nodes: Nodes, messages: str = "1@n1:4151@a") -> tuple[Recalled, list[tuple[str, bool]]]:
    told: list[tuple[str, bool]] = []
    upstream: Any = nodes
    results = trio.run(act, planned(messages), upstream, lambda node, done: told.append((node, done)))
    (result,) = results
    return result, told


@pytest.mark.parametrize(
    ("failure", "says", "may_follow"),
    [
        (UpstreamError("timeout awaiting response headers"), "asked, no answer", True),
        (UpstreamError("dial tcp 127.0.0.1:1: connect: connection refused"), "nothing listens at its address", False),
        (UpstreamError("HTTP 404", status=404, body=b'{"message":"NOT_FOUND"}'), "an older version", False),
        (UpstreamError("HTTP 409", status=409, body=b'{"message":"ANOTHER_LOG"}'), "created again", False),
        ("no JSON", "cannot be read", False),
        ('{"cancelled":-1}', "cannot be read", False),
    ],
)
def test_a_node_that_does_not_say_that_it_cancelled_is_no_success(
    failure: Exception | str, says: str, may_follow: bool
) -> None:
    result, told = recalled(Nodes(failure))
    assert says in result.error
    assert (result.asked, result.done, result.may_follow, result_of([result])) == (1, 0, may_follow, "failed")
    assert told == [("n1:4151", False)]


def test_what_a_node_did_before_it_fell_silent_stays_counted_and_the_log_is_named() -> None:
    scattered = " ".join(f"{2 * it}@n1:4151@a" for it in range(300))  # two requests
    nodes = Nodes(UpstreamError("timeout awaiting response headers"), answers=1)
    result, _ = recalled(nodes, scattered)
    assert (result.asked, result.done, result.in_flight, result.gone) == (300, 5, 1, 2)
    assert result_of([result]) == "partly"
    assert all(it.startswith("/message/cancel?") and "&log=a&" in it for it in nodes.asked)
    done, told = recalled(Nodes("", answers=1), "1-500@n1:4151@a")
    assert (done.error, told) == ("", [("n1:4151", True)])


# What nodes tell

ON_LOG = NodeDeferred(node="n1:4151", log="a")
LINE: dict[str, Any] = {"sequence": 7, "due": 2_000_000_000, "attempts": 1, "after": "5e0a91c3,9001,7"}


def test_a_line_is_read_and_has_a_name_only_with_a_log() -> None:
    one = DEFERRED.line_in(ON_LOG, {**LINE, "id": "0f3c9a8e5d2b1000", "unread": "gone"}, None, is_wanted=True)
    assert (one.pick, one.due, one.place, one.unread) == ("7@n1:4151@a", 2.0, "5e0a91c3,9001,7", "gone")
    assert DEFERRED.line_in(NodeDeferred(node="n1:4151"), LINE, None, is_wanted=True).pick == ""
    assert DEFERRED.count_in("n1", [{"count": 3, "log": None}]) == NodeDeferred(node="n1", count=3)


@pytest.mark.parametrize("odd", [{"count": -1, "log": "a"}, {"count": 1}, {"count": 1, "log": 5}, []])
def test_what_no_nsqd_says_is_refused(odd: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        DEFERRED.count_in("n1", [odd])


def test_the_place_before_a_message() -> None:
    assert DEFERRED.place_before("5e0a91c3,9001,7") == "5e0a91c3,9001,6"
    assert DEFERRED.place_before("5e0a91c3,9001,0").startswith("5e0a91c3,9000,")
    with pytest.raises(ValueError, match=r"unpack|int"):
        DEFERRED.place_before("nonsense")
