"""What a channel has buried, over HTTP: it is shown, kicked and discarded, at once or as a job."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import pytest

from nsqcommon.http_api import Request, Stream
from nsqd.broker.batch import Batch
from nsqd.broker.channel import Channel
from nsqd.broker.consumer import Consumer
from nsqd.broker.rules import ChannelRules, Overflow
from nsqd.http.buried import BuriedEndpoints
from nsqd.http.calls import Calls
from nsqd.http.lines import MOST_LINES
from tests.nsqd.http.conftest import Nsqd
from tests.nsqd.http.fake_history import no_history
from tests.nsqd.http.whole.test_stats import CLIENT
from tests.support.asgi import ask, run_directly

CHANNEL = "topic=t&channel=c"


def channel_of(nsqd: Nsqd) -> Channel:
    return nsqd.broker.topics["t"].channels["c"]


@pytest.fixture
def nsqd() -> Nsqd:
    """Return an nsqd whose channel has buried the messages 0 to 4, and has one that waits."""
    nsqd = Nsqd()
    nsqd.post("/topic/create?topic=t")
    nsqd.post(f"/channel/create?{CHANNEL}")
    channel = channel_of(nsqd)
    got: list[bytes] = []
    consumer = Consumer(send=got.extend, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
    channel.join(consumer)
    consumer.ready_count = 5
    nsqd.post("/mpub?topic=t&binary=true", b"\0\0\0\6" + b"".join(b"\0\0\0\1%c" % it for it in b"abc\xffef"))
    consumer.ready_count = 0
    for number, message_id in enumerate(got[1::3]):
        assert channel.bury(consumer, message_id, "bad" if number < 3 else "worse", nsqd.broker.turn.now) is None
    return nsqd


def lines(nsqd: Nsqd, arguments: str = "") -> list[Any]:
    answer = nsqd.get(f"/channel/buried?{CHANNEL}{arguments}")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in answer.body.splitlines()]


def sequences(nsqd: Nsqd, arguments: str = "") -> list[int]:
    return [line["sequence"] for line in lines(nsqd, arguments)]


def post(nsqd: Nsqd, path: str, arguments: str = "") -> Any:
    answer = nsqd.post(f"/channel/{path}?{CHANNEL}{arguments}")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def test_a_line_says_what_failed_why_and_where(nsqd: Nsqd) -> None:
    first, *_, fourth, _ = lines(nsqd)
    (batch,) = nsqd.store.logs["t"].batches
    assert first == {
        "sequence": 0,
        "id": f"{batch.base_id:016x}",
        "attempts": 1,
        "buried_at": nsqd.broker.turn.timestamp // 1_000_000 * 1_000_000,
        "reason": "bad",
        "client": "127.0.0.1",
        "timestamp": batch.timestamp,
        "body": "a",
    }
    assert fourth["body_base64"] == "/w=="


def test_bodies_are_left_out_for_who_does_not_want_them(nsqd: Nsqd) -> None:
    assert "body" not in lines(nsqd, "&bodies=false")[0]


def test_pages_and_reasons(nsqd: Nsqd) -> None:
    assert sequences(nsqd) == [0, 1, 2, 3, 4]
    assert sequences(nsqd, "&limit=2") == [0, 1]
    assert sequences(nsqd, "&limit=2&after=1") == [2, 3]
    assert sequences(nsqd, "&after=4") == []
    assert sequences(nsqd, "&reason=worse") == [3, 4]
    assert sequences(nsqd, "&reason=nothing") == []


def test_a_body_that_the_log_no_longer_has_is_said_to_be_gone(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsqd.store.logs["t"], "next_readable", lambda sequence: max(sequence, 1))
    first, second, *_ = lines(nsqd)
    assert (first["sequence"], first["unread"], "body" in first) == (0, "the log no longer has it", False)
    assert second["body"] == "b"


def test_a_body_that_the_disk_refuses_is_said_to_be_unreadable(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    log = nsqd.store.logs["t"]
    monkeypatch.setattr(log, "batch_at", lambda sequence: None)
    monkeypatch.setattr(log, "end_of_refused", lambda sequence: 5)
    assert [line["unread"] for line in lines(nsqd)] == ["the disk can't be read now"] * 5


class Fetching:
    """Answers one request whose bodies have to be fetched from disk first."""

    def __init__(self, nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nsqd = nsqd
        self.now = 0.0
        self.reading = no_history()
        self.found: dict[int, Batch] = {}
        log = nsqd.store.logs["t"]
        (self.batch,) = log.batches
        monkeypatch.setattr(log, "batch_at", self.found.get)
        calls = Calls(nsqd.broker, nsqd.turn, run_directly)
        self._endpoints = BuriedEndpoints(calls, self.reading, lambda: self.now)

    def fetched(self, sequence: int) -> None:
        self.found[sequence] = self.batch
        self.reading.loads.wake("t")

    async def ask(self) -> bytes:
        scope = {"method": "GET", "path": "/channel/buried", "query_string": CHANNEL.encode(), "headers": []}
        stream = await self._endpoints.show(Request(scope, Mock()))
        assert isinstance(stream, Stream)
        pieces = []
        while (piece := await stream.next_piece()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    async def until_it_waits(self, asked: asyncio.Future[bytes]) -> None:
        """Return when the request waits for the disk, or is answered, which takes as many steps as it likes."""
        while not (len(self.reading.loads) or asked.done()):  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0)


def test_a_body_is_waited_for_and_nobody_else_has_to_wait(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> bytes:
        fetching = Fetching(nsqd, monkeypatch)
        asked = asyncio.ensure_future(fetching.ask())
        for sequence in range(5):
            await fetching.until_it_waits(asked)
            if sequence == 3:
                post(nsqd, "kick", "&sequence=3")  # what leaves while its body is fetched is not shown
            fetching.fetched(sequence)
            await asyncio.sleep(0)
        return await asked

    shown = asyncio.run(scenario()).splitlines()
    assert [json.loads(line)["body"] for line in shown] == ["a", "b", "c", "e"]


def test_a_read_that_takes_too_long_is_given_up(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> bytes:
        fetching = Fetching(nsqd, monkeypatch)
        asked = asyncio.ensure_future(fetching.ask())
        while not asked.done():
            await fetching.until_it_waits(asked)
            fetching.now += 11
            fetching.reading.loads.wake("t")  # another read of the topic has ended
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return await asked

    shown = asyncio.run(asyncio.wait_for(scenario(), 30)).splitlines()
    assert [json.loads(line)["unread"] for line in shown] == ["the disk can't be read now"] * 5


def test_reasons_are_counted(nsqd: Nsqd) -> None:
    answer = nsqd.get(f"/channel/buried?{CHANNEL}&summary=true")
    assert json.loads(answer.body) == {
        "count": 5,
        "reasons": [
            {"reason": "bad", "client": "127.0.0.1", "count": 3},
            {"reason": "worse", "client": "127.0.0.1", "count": 2},
        ],
        "others": 0,
        "job": None,
        "kick": None,
        "paused_why": "",
        "room": None,
    }


@pytest.mark.parametrize(("verb", "done", "depth"), [("kick", "kicked", 3), ("discard", "discarded", 1)])
def test_messages_are_named(nsqd: Nsqd, verb: str, done: str, depth: int) -> None:
    third = lines(nsqd)[2]["id"]
    synced = nsqd.turn.synced
    answer = post(nsqd, verb, f"&sequence=0&id={third}&sequence=77")
    kick = {"kick": answer.get("kick")} if verb == "kick" else {}
    assert answer == {done: 2, "missing": 1, "job": None} | kick
    assert nsqd.turn.synced == synced + 1
    assert sequences(nsqd) == [1, 3, 4]
    assert channel_of(nsqd).depth == depth


@pytest.mark.parametrize(("arguments", "left"), [
    ("", []),
    ("&limit=2", [2, 3, 4]),
    ("&reason=worse", [0, 1, 2]),
    ("&reason=wor&limit=1", [0, 1, 2, 4]),
    ("&before=2023-01-01T00:00:00Z", [0, 1, 2, 3, 4]),
    ("&before=1", [0, 1, 2, 3, 4]),
    ("&before=2100-01-01T00:00:00Z", []),
])  # fmt: skip
def test_messages_are_selected(nsqd: Nsqd, arguments: str, left: list[int]) -> None:
    answer = post(nsqd, "kick", arguments)
    assert answer == {"kicked": 5 - len(left), "job": None, "kick": nsqd.broker.turn.timestamp // 1_000_000}
    assert sequences(nsqd) == left


def test_before_is_the_time_of_a_line(nsqd: Nsqd) -> None:
    time = lines(nsqd)[0]["buried_at"]
    assert post(nsqd, "kick", f"&before={time}")["kicked"] == 0
    assert post(nsqd, "kick", f"&before={time + 1}")["kicked"] == 5


def test_a_rate_makes_a_job_that_is_shown_and_stopped(nsqd: Nsqd) -> None:
    job = post(nsqd, "kick", "&rate=0.5&reason=bad")["job"]
    now = nsqd.broker.turn.timestamp // 1_000_000 * 1_000_000
    assert (job["verb"], job["done"], job["rate"], job["reason"], job["who"], job["started_at"], job["ended_at"]) == (
        "kick", 0, 0.5, "bad", "10.0.0.1:5555", now, None,
    )  # fmt: skip
    assert json.loads(nsqd.get(f"/channel/jobs?{CHANNEL}").body) == {"jobs": [job]}
    assert json.loads(nsqd.get(f"/channel/buried?{CHANNEL}&summary=true").body)["job"] == job
    answer = nsqd.post(f"/channel/discard?{CHANNEL}")
    assert (answer.status, json.loads(answer.body)) == (409, {"message": "JOB_UNDER_WAY", "job": job})
    assert post(nsqd, "kick", "&sequence=0")["kicked"] == 1  # by name, nothing gets in the way
    assert post(nsqd, "jobs/stop")["job"] == {**job, "ended_at": now}
    assert json.loads(nsqd.get(f"/channel/jobs?{CHANNEL}").body) == {"jobs": [{**job, "ended_at": now}]}
    assert post(nsqd, "jobs/stop") == {"job": None}


@pytest.mark.parametrize(("user", "who"), [
    ("ana%20m%C3%BCller", "ana müller (10.0.0.1:5555)"),
    ("eve%0A%1B[31m", "eve  [31m (10.0.0.1:5555)"),
    ("x" * 300, f"{'x' * 200} (10.0.0.1:5555)"),
    ("%0A", "10.0.0.1:5555"),
])  # fmt: skip
def test_a_job_names_the_user_of_nsqadmin_who_began_it(nsqd: Nsqd, user: str, who: str) -> None:
    ask(nsqd.app, "POST", f"/channel/kick?{CHANNEL}&rate=0.5", headers={"nsqadmin-user": user})
    assert json.loads(nsqd.get(f"/channel/jobs?{CHANNEL}").body)["jobs"][0]["who"] == who


def test_a_kick_is_taken_back(nsqd: Nsqd) -> None:
    before = lines(nsqd)
    kick = post(nsqd, "kick")["kick"]
    assert lines(nsqd) == []
    for wrong in ("", f"&kick={kick + 1}"):
        assert nsqd.post(f"/channel/kick/undo?{CHANNEL}{wrong}").status == 404
    assert json.loads(nsqd.get(f"/channel/buried?{CHANNEL}&summary=true").body)["kick"] == kick
    assert post(nsqd, "kick/undo", f"&kick={kick}") == {"kicked": 5, "buried": 5, "job": None}
    assert lines(nsqd) == before
    answer = nsqd.post(f"/channel/kick/undo?{CHANNEL}&kick={kick}")
    assert (answer.status, json.loads(answer.body)["message"]) == (404, "KICK_NOT_FOUND")


def test_several_requests_may_be_one_kick(nsqd: Nsqd) -> None:
    kick = post(nsqd, "kick", "&sequence=0")["kick"]
    assert post(nsqd, "kick", f"&sequence=1&kick={kick}")["kick"] == kick
    assert post(nsqd, "kick/undo", f"&kick={kick}") == {"kicked": 2, "buried": 2, "job": None}
    assert sequences(nsqd) == [0, 1, 2, 3, 4]


def test_no_kick_is_taken_back_beside_a_discard(nsqd: Nsqd) -> None:
    kick = post(nsqd, "kick", "&sequence=0")["kick"]
    post(nsqd, "discard", "&rate=1")
    answer = nsqd.post(f"/channel/kick/undo?{CHANNEL}&kick={kick}")
    assert (answer.status, json.loads(answer.body)["message"]) == (409, "JOB_UNDER_WAY")


def test_a_change_is_on_record(nsqd: Nsqd) -> None:
    post(nsqd, "kick", "&rate=1")
    post(nsqd, "jobs/stop")
    post(nsqd, "discard", "&sequence=0")
    changes = json.loads(nsqd.get("/changes?topic=t").body)["changes"]
    assert [(it["what"], it["channel"], it["detail"]) for it in changes[-3:]] == [
        ("kick", "c", "rate=1"), ("stop_job", "c", ""), ("discard", "c", "sequence=0"),
    ]  # fmt: skip


def test_the_end_of_a_job_is_in_the_log(nsqd: Nsqd, capsys: pytest.CaptureFixture[str]) -> None:
    post(nsqd, "kick")
    assert "TOPIC(t): channel(c): kick has ended messages=5 buried=0\n" in capsys.readouterr().out


@pytest.mark.parametrize(("path", "arguments", "code"), [
    ("kick", "&id=xyz", "INVALID_ARG_ID"),
    ("kick", "&id=0A0000000000000F", "INVALID_ARG_ID"),
    ("kick", "&sequence=-1", "INVALID_ARG_SEQUENCE"),
    ("kick", "&sequence=9999999999999999999", "INVALID_ARG_SEQUENCE"),
    ("kick", "&sequence=1&reason=bad", "INVALID_REQUEST"),
    ("discard", "&limit=x", "INVALID_ARG_LIMIT"),
    ("discard", "&rate=-1", "INVALID_ARG_RATE"),
    ("discard", "&rate=inf", "INVALID_ARG_RATE"),
    ("discard", "&rate=nan", "INVALID_ARG_RATE"),
    ("discard", "&before=yesterday", "INVALID_ARG_BEFORE"),
    ("discard", "&before=earliest", "INVALID_ARG_BEFORE"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(nsqd: Nsqd, path: str, arguments: str, code: str) -> None:
    answer = nsqd.post(f"/channel/{path}?{CHANNEL}{arguments}")
    assert (answer.status, json.loads(answer.body)["message"]) == (400, code)
    assert sequences(nsqd) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("arguments", "code"), [
    (f"limit={MOST_LINES + 1}", "INVALID_ARG_LIMIT"), ("limit=a", "INVALID_ARG_LIMIT"), ("after=-1", "INVALID_ARG_AFTER"),
])  # fmt: skip
def test_a_list_has_bounds(nsqd: Nsqd, arguments: str, code: str) -> None:
    answer = nsqd.get(f"/channel/buried?{CHANNEL}&{arguments}")
    assert (answer.status, json.loads(answer.body)["message"]) == (400, code)


@pytest.mark.parametrize(("where", "status", "code"), [
    ("topic=t&channel=other", 404, "CHANNEL_NOT_FOUND"),
    ("topic=other&channel=c", 404, "TOPIC_NOT_FOUND"),
    ("topic=t", 400, "MISSING_ARG_CHANNEL"),
    ("topic=t&channel=c%23ephemeral", 400, "EPHEMERAL_CHANNEL"),
    ("topic=t%23ephemeral&channel=c", 400, "EPHEMERAL_TOPIC"),
])  # fmt: skip
def test_only_a_channel_on_disk_has_buried_messages(nsqd: Nsqd, where: str, status: int, code: str) -> None:
    answers = [nsqd.get(f"/channel/{path}?{where}") for path in ("buried", "jobs")]
    answers += [nsqd.post(f"/channel/{path}?{where}") for path in ("kick", "discard", "jobs/stop")]
    assert {(answer.status, json.loads(answer.body)["message"]) for answer in answers} == {(status, code)}


def test_many_reasons_are_counted_together(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqd.http.buried.MOST_REASONS", 1)
    found = json.loads(nsqd.get(f"/channel/buried?{CHANNEL}&summary=true").body)
    assert ([it["reason"] for it in found["reasons"]], found["others"]) == (["bad"], 2)


# Figures


def test_stats_name_what_is_buried_only_where_there_is_something(nsqd: Nsqd) -> None:
    def shown() -> Any:
        return json.loads(nsqd.get("/stats?format=json").body)["topics"][0]["channels"][0]

    assert shown()["buried_count"] == 5
    assert " buried: 5\n" in nsqd.get("/stats").body.decode()
    post(nsqd, "discard")
    assert "buried_count" not in shown()
    assert "buried" not in nsqd.get("/stats").body.decode()


def test_stats_say_why_a_channel_has_paused_itself(nsqd: Nsqd) -> None:
    channel_of(nsqd)._hold("more than 3 messages are buried (max_buried)")
    (shown,) = json.loads(nsqd.get("/stats?format=json").body)["topics"][0]["channels"]
    assert (shown["paused"], shown["paused_why"]) == (True, "more than 3 messages are buried (max_buried)")
    assert " paused: more than 3 messages are buried (max_buried)\n" in nsqd.get("/stats").body.decode()
    nsqd.post(f"/channel/pause?{CHANNEL}")
    assert b"paused_why" not in nsqd.get("/stats?format=json").body


def test_metrics_count_what_was_buried_kicked_and_discarded(nsqd: Nsqd) -> None:
    post(nsqd, "kick", "&limit=2")
    post(nsqd, "discard", "&limit=1")
    text = nsqd.get("/metrics").body.decode()
    for name, value in (("buried", 2), ("burials_total", 5), ("kicks_total", 2), ("discards_total", 1)):
        assert f'nsqd_channel_{name}{{topic="t",channel="c"}} {value}\n' in text


def test_a_request_names_no_more_messages_than_a_query_has_room_for(nsqd: Nsqd) -> None:
    named = "".join(f"&sequence={number}" for number in range(901))
    answer = nsqd.post(f"/channel/kick?{CHANNEL}{named}")
    assert (answer.status, json.loads(answer.body)["message"]) == (400, "TOO_MANY")
    assert nsqd.post(f"/channel/kick?{CHANNEL}{named.removesuffix('&sequence=900')}").status == 200


# A channel that is full


def bound(nsqd: Nsqd, most: int, overflow: Overflow = Overflow.DROP_OLDEST) -> None:
    channel_of(nsqd).take_rules(ChannelRules(max_messages=most, overflow=overflow))


def room(nsqd: Nsqd) -> int | None:
    found: int | None = json.loads(nsqd.get(f"/channel/buried?{CHANNEL}&summary=true").body)["room"]
    return found


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.BURY])
@pytest.mark.parametrize("arguments", [
    "&sequence=0&sequence=1&sequence=2&sequence=77", "", "&limit=3", "&reason=bad", "&rate=1",
])  # fmt: skip
def test_a_kick_that_has_no_room_is_refused_with_what_fits(nsqd: Nsqd, arguments: str, overflow: Overflow) -> None:
    bound(nsqd, 2, overflow)
    answer = nsqd.post(f"/channel/kick?{CHANNEL}{arguments}")
    reason = "channel t:c has room for 2 messages that may not be dropped (max_messages = 2)"
    assert (answer.status, json.loads(answer.body)) == (409, {"message": "FULL", "reason": reason, "fits": 2})
    assert sequences(nsqd) == [0, 1, 2, 3, 4]


def test_a_kick_by_force_needs_no_room(nsqd: Nsqd) -> None:
    bound(nsqd, 2)
    assert post(nsqd, "kick", "&sequence=0&sequence=1&sequence=2&force=true")["kicked"] == 3
    assert post(nsqd, "kick", "&reason=worse&force=true")["kicked"] == 2
    assert (channel_of(nsqd).depth, room(nsqd)) == (6, 0)


@pytest.mark.parametrize("arguments", [
    "&sequence=0&sequence=1&sequence=77", "&limit=2", "&reason=worse", "&before=2023-01-01T00:00:00Z",
])  # fmt: skip
def test_a_kick_that_has_room_needs_no_force(nsqd: Nsqd, arguments: str) -> None:
    bound(nsqd, 2)
    assert post(nsqd, "kick", arguments)["kicked"] in (0, 2)


def test_the_room_shrinks_by_what_was_given_back(nsqd: Nsqd) -> None:
    assert room(nsqd) is None
    bound(nsqd, 3)
    assert room(nsqd) == 3, "what waits for its first delivery makes room"
    post(nsqd, "kick", "&limit=2")
    assert room(nsqd) == 1
    assert nsqd.post(f"/channel/kick?{CHANNEL}&limit=2").status == 409


def test_a_bound_that_refuses_publishes_is_in_the_way_of_no_kick(nsqd: Nsqd) -> None:
    bound(nsqd, 1, Overflow.REJECT)
    assert post(nsqd, "kick")["kicked"] == 5


def test_a_job_says_whether_it_uses_force(nsqd: Nsqd) -> None:
    assert post(nsqd, "kick", "&rate=1&force=true")["job"]["force"] is True
    post(nsqd, "jobs/stop")
    assert post(nsqd, "kick", "&rate=1")["job"]["force"] is False


def test_others_have_their_turns_while_the_messages_of_a_kick_are_counted(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(nsqd, 2)
    monkeypatch.setattr("nsqd.http.buried._LOOKED_AT", 1)
    slept = Mock(wraps=asyncio.sleep)
    monkeypatch.setattr("nsqd.http.buried.asyncio.sleep", slept)
    assert nsqd.post(f"/channel/kick?{CHANNEL}&reason=worse").status == 200
    assert slept.call_count == 5
