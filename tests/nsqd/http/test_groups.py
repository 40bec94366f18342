"""The endpoints about the groups of a channel."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from pyroaring import BitMap64

from nsqcommon.wire.headers import NONE, encode_headers
from nsqd.broker import operator_actions
from nsqd.broker.rules import ChannelRules
from tests.nsqd.fake_broker import START
from tests.nsqd.http.conftest import Nsqd, code
from tests.support.asgi import ask_in_loop
from tests.support.given_rules import GivenRules

AT = "topic=t&channel=c"


def ruled(nsqd: Nsqd, **rules: Any) -> None:
    nsqd.broker.turn.rules = GivenRules(ChannelRules(**rules))
    nsqd.broker.topic("t").channel("c")


def publish(nsqd: Nsqd, text: str) -> None:
    """Publish one batch. A message `a1` is of group a, and one that begins with `-` is of no group."""
    payload, offsets, headers = b"", [0], b""
    for word in text.split():
        payload += len(word).to_bytes(4, "big") + word.encode()
        offsets.append(len(payload))
        headers += encode_headers({"nsq-group": word.rstrip("0123456789")}) if word[0] != "-" else NONE
    nsqd.broker.topics["t"].publish(payload, offsets, headers=headers)
    nsqd.turn.finish()


def take(nsqd: Nsqd, count: int) -> None:
    """Take messages, and ask for one more than there are, so that the others are held."""
    assert nsqd.post(f"/sub?{AT}&max={count + 1}").body.count(b"\n") == count


def ask(nsqd: Nsqd, query: str = "", status: int = 200) -> Any:
    found = nsqd.get(f"/channel/groups?{AT}{query}")
    assert found.status == status
    return json.loads(found.body)


def row(name: str, held: int, in_flight: int, oldest: int | None, weight: int = 1) -> dict[str, object]:
    timestamp = None if oldest is None else START * 10**9
    return {
        "group": name,
        "held": held,
        "again": 0,
        "in_flight": in_flight,
        "oldest": oldest,
        "oldest_timestamp": timestamp,
        "weight": weight,
    }


@pytest.fixture
def shared(nsqd: Nsqd) -> Nsqd:
    """Return an nsqd with messages of three groups, of which each has one in flight."""
    ruled(nsqd, share="group", max_in_flight_per_group=1, weights=(("b", 5),))
    publish(nsqd, "a1 b1 b2 a2 b3 é1")
    take(nsqd, 3)
    return nsqd


def test_the_largest_groups_come_first(shared: Nsqd) -> None:
    assert ask(shared) == {
        "held": 3,
        "groups": 3,
        "unsorted": 0,
        "ahead": 0,
        "max_held": 20_000_000,
        "held_full_since": None,
        "largest": [row("b", 2, 1, 2, weight=5), row("a", 1, 1, 3), row("é", 0, 1, None)],
    }


@pytest.mark.parametrize(("query", "names"), [("limit=1", "b"), ("limit=0", ""), ("name=%C3%A9", "é"), ("name=no", "")])
def test_a_list_may_be_short(shared: Nsqd, query: str, names: str) -> None:
    found = ask(shared, f"&{query}")
    assert [it["group"] for it in found["largest"]] == list(names)
    assert found["groups"] == 3


def test_the_group_with_exactly_the_name_comes_first(nsqd: Nsqd) -> None:
    """A plan of nsqadmin asks for it, and other names may contain it: 1 is in 10 and 21."""
    ruled(nsqd, share="group", max_in_flight_per_group=1)
    publish(nsqd, "a1 ab1 ba1 ab2 ba2")
    take(nsqd, 3)
    assert [it["group"] for it in ask(nsqd, "&name=a&limit=2")["largest"]] == ["a", "ab"]


def test_what_nobody_has_asked_for_is_ahead_and_what_was_cancelled_is_not_the_oldest(nsqd: Nsqd) -> None:
    ruled(nsqd, order="group")
    publish(nsqd, "a1 a2 a3 a4")
    found = ask(nsqd)
    assert (found["held"], found["ahead"], found["largest"]) == (0, 4, [])
    take(nsqd, 1)
    assert ask(nsqd)["largest"] == [row("a", 3, 1, 1)]
    operator_actions.cancel(nsqd.broker.topics["t"].channels["c"], BitMap64([1, 2]))
    assert ask(nsqd)["largest"] == [row("a", 1, 1, 3)]


def test_since_when_no_more_may_be_held(nsqd: Nsqd) -> None:
    ruled(nsqd, order="group", max_held=1)
    publish(nsqd, "a1 a2 a3 b1")
    take(nsqd, 1)
    found = ask(nsqd)
    assert (found["held"], found["ahead"], found["max_held"]) == (1, 2, 1)
    assert found["held_full_since"] == START * 10**9


@pytest.mark.parametrize(("query", "status", "answer"), [
    ("", 400, "MISSING_ARG_TOPIC"),
    ("topic=t", 400, "MISSING_ARG_CHANNEL"),
    ("topic=no&channel=c", 404, "TOPIC_NOT_FOUND"),
    ("topic=t&channel=no", 404, "CHANNEL_NOT_FOUND"),
])  # fmt: skip
def test_the_channel_is_checked_first(nsqd: Nsqd, query: str, status: int, answer: str) -> None:
    ruled(nsqd)
    found = nsqd.get(f"/channel/groups?{query}")
    assert (found.status, found.body) == (status, code(answer))


def test_a_list_is_bounded_and_needs_rules(nsqd: Nsqd, shared: Nsqd) -> None:
    for limit in ("1001", "x", "-1"):
        assert ask(shared, f"&limit={limit}", status=400)["message"] == "INVALID_ARG_LIMIT"
    nsqd.broker.turn.rules = GivenRules()
    nsqd.broker.rules_changed(["t"])
    nsqd.turn.finish()
    assert ask(nsqd, status=404)["message"] == "NO_GROUPS"


# Actions on one group


def do(nsqd: Nsqd, action: str, query: str, status: int = 200) -> Any:
    found = nsqd.post(f"/channel/{action}?{AT}&{query}")
    assert found.status == status
    return json.loads(found.body)


@pytest.fixture
def waiting(nsqd: Nsqd) -> Nsqd:
    """Return an nsqd with a message of group a in flight, one held, and one ahead of the cursor; and the same of group é."""
    ruled(nsqd, order="group")
    publish(nsqd, "a1 é1 a2 é2")
    take(nsqd, 2)
    publish(nsqd, "a3 é3")
    return nsqd


def test_a_group_is_cancelled(waiting: Nsqd) -> None:
    assert do(waiting, "cancel", "group=%C3%A9") == {"cancelled": 2, "in_flight": 1, "unread": 0}
    assert waiting.turn.synced == 1
    assert waiting.broker.topics["t"].channels["c"].depth == 2
    assert do(waiting, "cancel", "group=none") == {"cancelled": 0, "in_flight": 0, "unread": 0}


def test_a_group_is_buried_and_a_kick_with_the_reason_takes_that_back(waiting: Nsqd) -> None:
    found = do(waiting, "bury", "group=a")
    reason = f"with its group a (request {START * 1000})"
    assert found == {"buried": 2, "reason": reason, "in_flight": 1, "unread": 0}
    channel = waiting.broker.topics["t"].channels["c"]
    assert (channel.depth, channel.paused) == (2, False)
    assert do(waiting, "kick", urlencode({"reason": reason}))["kicked"] == 2
    assert channel.depth == 4


def test_a_group_is_deferred_and_made_due(waiting: Nsqd) -> None:
    assert do(waiting, "due", "group=a&defer=60000") == {"moved": 2, "in_flight": 1, "unread": 0}
    assert len(waiting.broker.topics["t"].channels["c"].ledger.deferred) == 2
    assert do(waiting, "due", "group=a")["moved"] == 2
    assert len(waiting.broker.topics["t"].channels["c"].ledger.deferred) == 0


@pytest.mark.parametrize("action", ["bury", "cancel", "due"])
@pytest.mark.parametrize(("query", "status", "answer"), [
    ("topic=t&channel=c", 400, "MISSING_ARG_GROUP"),
    ("topic=t&channel=c&group=", 400, "INVALID_ARG_GROUP"),
    (f"topic=t&channel=c&group={'x' * 129}", 400, "INVALID_ARG_GROUP"),
    ("topic=t&channel=no&group=a", 404, "CHANNEL_NOT_FOUND"),
    ("topic=t&channel=c%23ephemeral&group=a", 400, "EPHEMERAL_CHANNEL"),
    ("topic=t%23ephemeral&channel=c&group=a", 400, "EPHEMERAL_TOPIC"),
])  # fmt: skip
def test_an_action_is_checked(waiting: Nsqd, action: str, query: str, status: int, answer: str) -> None:
    found = waiting.post(f"/channel/{action}?{query}")
    assert (found.status, json.loads(found.body)["message"]) == (status, answer)
    assert waiting.broker.topics["t"].channels["c"].depth == 4


def test_a_delay_is_checked_and_rules_are_needed(waiting: Nsqd) -> None:
    for wrong in ("never", "-1", "99999999999"):
        assert do(waiting, "due", f"group=a&defer={wrong}", status=400)["message"] == "INVALID_DEFER"
    waiting.broker.turn.rules = GivenRules()
    waiting.broker.rules_changed(["t"])
    waiting.turn.finish()
    assert do(waiting, "cancel", "group=a", status=404)["message"] == "NO_GROUPS"


def test_a_long_action_is_listed_and_can_be_stopped(nsqd: Nsqd) -> None:
    ruled(nsqd, order="group")
    publish(nsqd, "a1 " * 10_000)
    seen: list[Any] = []

    async def both() -> Any:
        request = asyncio.ensure_future(ask_in_loop(nsqd.app, "POST", f"/channel/bury?{AT}&group=a"))
        for _ in range(3):
            await asyncio.sleep(0)
        for method, path in (("GET", "jobs"), ("POST", "jobs/stop")):
            answer = await ask_in_loop(nsqd.app, method, f"/channel/{path}?{AT}")
            assert answer is not None
            seen.append(json.loads(answer.body))
        return await request

    answer = asyncio.run(both())
    (job,) = seen[0]["jobs"]
    assert (job["verb"], job["limit"], job["who"]) == ("bury", 10_000, "10.0.0.1:5555")
    assert 0 < job["done"] < 10_000
    assert seen[1]["job"]["verb"] == "bury"
    said = json.loads(answer.body)
    assert (answer.status, said["message"]) == (409, "STOPPED")
    channel = nsqd.broker.topics["t"].channels["c"]
    assert len(channel.buried_queue.buried) == said["done"] == 10_000 - channel.depth > 0
    assert ask_jobs(nsqd) == []


def ask_jobs(nsqd: Nsqd) -> Any:
    return json.loads(nsqd.get(f"/channel/jobs?{AT}").body)["jobs"]


def test_an_action_is_among_the_changes(waiting: Nsqd) -> None:
    for action in ("bury", "cancel", "due"):
        do(waiting, action, "group=a")
    changes = json.loads(waiting.get("/changes").body)["changes"]
    found = [(it["what"], it["channel"], it["detail"]) for it in changes if it["detail"]]
    assert found == [(f"{verb}_group", "c", "group=a") for verb in ("bury", "cancel", "move")]
