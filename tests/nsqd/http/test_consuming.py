"""Consuming over HTTP: what is taken, what its answers do, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from nsqcommon.http_api import Request, Stream
from nsqcommon.wire.limits import SizeLimits
from nsqd.auth.grants import AuthQuestion, decode_grant
from nsqd.broker import stats
from nsqd.broker.leases import Leases
from nsqd.http.calls import Calls
from nsqd.http.consuming import MOST_MESSAGES, ConsumeEndpoints
from nsqd.http.leasing import Leasing
from tests.nsqd.http.conftest import Nsqd, code
from tests.support.asgi import Answer, ask, ask_in_loop, run_directly
from tests.support.client import TIMEOUT
from tests.support.leasing import bounds, leasing_of

AT = "topic=t&channel=c"
HEADED = {"nsq-header-colour": "red"}


def lines(answer: Answer) -> list[Any]:
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


def sub(nsqd: Nsqd, arguments: str = "&max=1000") -> list[Any]:
    return lines(nsqd.post(f"/sub?{AT}{arguments}"))


@pytest.fixture
def nsqd() -> Nsqd:
    """Return an nsqd whose channel has three messages that wait."""
    nsqd = Nsqd()
    assert sub(nsqd) == []
    nsqd.post("/pub?topic=t", b'say "a"\n\x00\xc3\xa9')
    nsqd.post("/pub?topic=t", b"\xff")
    ask(nsqd.app, "POST", "/pub?topic=t", b"c", HEADED)
    return nsqd


def ids(nsqd: Nsqd) -> list[bytes]:
    return [line["id"].encode() for line in sub(nsqd)]


def test_a_line_for_each_message(nsqd: Nsqd) -> None:
    first, second, third = sub(nsqd, "&max=3&lease=90s")
    (published,) = {batch.timestamp for batch in nsqd.store.logs["t"].batches}
    assert first == {
        "id": f"{nsqd.store.logs['t'].batches[0].base_id:016x}",
        "attempts": 1,
        "timestamp": published,
        "body": 'say "a"\n\x00é',
        "lease": nsqd.broker.turn.timestamp + 90 * 10**9,
    }
    assert second["body_base64"] == "/w=="
    assert (third["headers"], third["body"]) == ({"colour": "red"}, "c")


def test_one_message_unless_the_request_says_how_many(nsqd: Nsqd) -> None:
    assert [len(sub(nsqd, arguments)) for arguments in ("", "&max=1", "&max=5", "&max=5")] == [1, 1, 1, 0]


def test_the_channel_is_created_as_by_sub_and_nsqd_shows_its_consumer(nsqd: Nsqd) -> None:
    (client,) = stats.snapshot(nsqd.broker, "t", "c").topics[0].channels[0].clients or ()  # type: ignore[index]
    assert (client.version, client.client_id, client.remote_address) == ("HTTP", "10.0.0.1", "10.0.0.1:5555")


def test_each_id_has_its_answer_in_its_place(nsqd: Nsqd) -> None:
    first, second, third = ids(nsqd)
    unknown = b"0123456789abcdef"
    body = b"\n".join([first, unknown, first, b'no "id"', second])
    answers = lines(nsqd.post(f"/fin?{AT}", body))
    assert [answer["id"] for answer in answers] == [
        *(it.decode() for it in (first, unknown, first)),
        "no",
        '"id"',
        second.decode(),
    ]
    assert [answer.get("error") for answer in answers] == [
        None,
        "E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight",
        f"E_FIN_FAILED FIN {first.decode()} failed ID not in flight",
        "E_FIN_FAILED FIN no failed invalid message ID",
        'E_FIN_FAILED FIN "id" failed invalid message ID',
        None,
    ]
    assert len(nsqd.broker.topics["t"].channels["c"].in_flight) == 1
    assert lines(nsqd.post(f"/fin?{AT}", third + b"\r\n")) == [{"id": third.decode()}]


def test_requeue_touch_and_bury(nsqd: Nsqd) -> None:
    first, second, third = ids(nsqd)
    assert lines(nsqd.post(f"/touch?{AT}&lease=100s", second)) == [
        {"id": second.decode(), "lease": nsqd.broker.turn.timestamp + 100 * 10**9}
    ]
    assert lines(nsqd.post(f"/bury?{AT}&reason=no%20luck", second)) == [{"id": second.decode()}]
    assert lines(nsqd.post(f"/req?{AT}&free=true", first)) == [{"id": first.decode()}]
    assert lines(nsqd.post(f"/req?{AT}&defer=5000", third)) == [{"id": third.decode()}]
    (again,) = sub(nsqd)
    assert (again["id"], again["attempts"]) == (first.decode(), 1)
    channel = nsqd.broker.topics["t"].channels["c"]
    assert (len(channel.ledger.deferred), len(channel.buried_queue.buried)) == (1, 1)
    for verb in ("req", "touch", "bury"):
        (answer,) = lines(nsqd.post(f"/{verb}?{AT}", second))
        word = verb.upper()
        assert answer["error"] == f"E_{word}_FAILED {word} {second.decode()} failed ID not in flight"


def test_what_is_finished_is_in_the_journal_before_the_answer(nsqd: Nsqd) -> None:
    first, *_ = ids(nsqd)
    before = nsqd.broker.turn.journal.urgent_changes
    nsqd.post(f"/fin?{AT}", first)
    assert nsqd.broker.turn.journal.urgent_changes == before + 1


@pytest.mark.parametrize(
    ("target", "status", "name"),
    [
        ("/sub?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("/sub?topic=t!&channel=c", 400, "INVALID_ARG_TOPIC"),
        (f"/sub?{AT}&max=0", 400, "INVALID_ARG_MAX"),
        (f"/sub?{AT}&max=1001", 400, "INVALID_ARG_MAX"),
        (f"/sub?{AT}&max=x", 400, "INVALID_ARG_MAX"),
        (f"/sub?{AT}&wait=61s", 400, "INVALID_ARG_WAIT"),
        (f"/sub?{AT}&wait=soon", 400, "INVALID_ARG_WAIT"),
        (f"/sub?{AT}&lease=999ms", 400, "INVALID_ARG_LEASE"),
        (f"/sub?{AT}&lease=901s", 400, "INVALID_ARG_LEASE"),
        ("/fin?topic=u&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("/fin?topic=t&channel=d", 404, "CHANNEL_NOT_FOUND"),
        (f"/req?{AT}&defer=3600001", 400, "INVALID_ARG_DEFER"),
        (f"/req?{AT}&defer=-1", 400, "INVALID_ARG_DEFER"),
        (f"/touch?{AT}&lease=0", 400, "INVALID_ARG_LEASE"),
    ],
)
def test_what_is_refused(nsqd: Nsqd, target: str, status: int, name: str) -> None:
    answer = nsqd.post(target, b"0" * 16)
    assert (answer.status, json.loads(answer.body)["message"]) == (status, name)


def test_a_list_of_ids_may_be_empty_and_has_a_bound(nsqd: Nsqd) -> None:
    assert lines(nsqd.post(f"/fin?{AT}")) == []
    answer = nsqd.post(f"/fin?{AT}", b"%016x\n" % 1 * (MOST_MESSAGES + 1))
    assert (answer.status, json.loads(answer.body)["message"]) == (400, "TOO_MANY")
    assert nsqd.post(f"/fin?{AT}", b"0" * 100_000).status == 413


def test_beyond_the_bound_of_leases_the_answer_says_when_to_come_again(nsqd: Nsqd) -> None:
    nsqd.leasing.leases = Leases(nsqd.broker.turn, bounds(of_holder=2))
    assert len(sub(nsqd)) == 2
    answer = nsqd.post(f"/sub?{AT}")
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert "--max-holder-leases" in json.loads(answer.body)["reason"]


@pytest.mark.parametrize(
    ("method", "bound"), [("POST", {"of_holder": 1}), ("GET", {"of_holder": 1}), ("GET", {"waiting": 0})]
)
def test_a_request_that_is_refused_creates_no_channel(nsqd: Nsqd, method: str, bound: dict[str, int]) -> None:
    nsqd.leasing.leases = Leases(nsqd.broker.turn, bounds(**bound))
    assert len(sub(nsqd, "&max=1")) == 1
    wants = {"accept": "text/event-stream"}
    answer = ask(nsqd.app, method, "/sub?topic=t&channel=new%23ephemeral", headers=wants)
    assert answer.status == 429
    assert list(nsqd.broker.topics["t"].channels) == ["c"]
    assert nsqd.leasing.leases.waiting == 0


def test_a_stream_needs_a_client_that_reads_events(nsqd: Nsqd) -> None:
    answer = nsqd.get(f"/sub?{AT}")
    assert (answer.status, json.loads(answer.body)["message"]) == (406, "NOT_ACCEPTABLE")


# What really waits


def request_of(query: str, *, headers: dict[bytes, bytes] | None = None, port: int = 5000) -> Request:
    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/sub",
        "query_string": query.encode(),
        "headers": list((headers or {}).items()),
        "client": ("10.0.0.1", port),
    }
    return Request(scope, receive)


def endpoints_of(nsqd: Nsqd, leasing: Leasing | None = None) -> ConsumeEndpoints:
    return ConsumeEndpoints(Calls(nsqd.broker, nsqd.turn, run_directly), leasing or nsqd.leasing)


def test_a_poll_waits_until_something_is_published() -> None:
    nsqd = Nsqd()
    endpoints = endpoints_of(nsqd)

    async def main() -> bytes:
        async with asyncio.timeout(TIMEOUT):
            waiting = asyncio.ensure_future(endpoints.poll(request_of(f"{AT}&wait=60s")))
            await asyncio.sleep(0)
            assert nsqd.leasing.leases.waiting == 1
            nsqd.post("/pub?topic=t", b"late")
            return (await waiting).body

    assert json.loads(asyncio.run(main()))["body"] == "late"
    assert nsqd.leasing.leases.waiting == 0


def test_a_poll_that_is_cancelled_takes_nothing_with_it() -> None:
    nsqd = Nsqd()
    endpoints = endpoints_of(nsqd)

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT):
            waiting = asyncio.ensure_future(endpoints.poll(request_of(f"{AT}&wait=60s")))
            await asyncio.sleep(0)
            nsqd.post("/pub?topic=t", b"late")
            waiting.cancel()
            await asyncio.wait([waiting])

    asyncio.run(main())
    (line,) = sub(nsqd)
    assert line["attempts"] == 1


def test_no_more_requests_wait_than_may(nsqd: Nsqd) -> None:
    endpoints = endpoints_of(Nsqd())

    async def main() -> list[int]:
        async with asyncio.timeout(TIMEOUT):
            polls = [asyncio.ensure_future(endpoints.poll(request_of(f"{AT}&wait=60s"))) for _ in range(11)]
            await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
            done = [poll.result().status for poll in polls if poll.done()]
            for poll in polls:
                poll.cancel()
            await asyncio.wait(polls)
            return done

    assert asyncio.run(main()) == [429]


def test_a_stop_answers_who_waits_and_ends_streams() -> None:
    nsqd = Nsqd()
    endpoints = endpoints_of(nsqd)

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT):
            waiting = asyncio.ensure_future(endpoints.poll(request_of(f"{AT}&wait=60s")))
            stream = await endpoints.stream(request_of(AT, headers={b"accept": b"text/event-stream"}))
            assert isinstance(stream, Stream)
            await stream.next_piece()
            piece = asyncio.ensure_future(stream.next_piece())
            await asyncio.sleep(0)
            nsqd.leasing.stop()
            assert (await waiting).body == b""
            assert await piece is None
            await stream.close()

    asyncio.run(main())
    assert nsqd.leasing.leases.waiting == 0


def test_a_stream_sends_events_that_a_browser_can_resume(nsqd: Nsqd) -> None:
    endpoints = endpoints_of(nsqd)
    wants = {b"accept": b"text/event-stream"}

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT):
            stream = await endpoints.stream(request_of(f"{AT}&max=2", headers=wants))
            assert isinstance(stream, Stream)
            assert await stream.next_piece() == b"retry: 1000\n\n"
            piece = await stream.next_piece()
            assert piece is not None
            first, second = piece.decode().removesuffix("\n\n").split("\n\n")
            name, data = first.split("\n")
            message = json.loads(data.removeprefix("data: "))
            assert name == f"id: {message['id']}"
            assert message["body"] == 'say "a"\n\x00é'
            last = second.split("\n")[0].removeprefix("id: ").encode()
            await stream.close()
            resumed = await endpoints.stream(request_of(AT, headers={**wants, b"last-event-id": last}, port=5001))
            assert isinstance(resumed, Stream)
            await resumed.next_piece()
            assert b'"body":"c"' in (await resumed.next_piece() or b"")
            await resumed.close()

    asyncio.run(main())
    assert len(nsqd.broker.topics["t"].channels["c"].in_flight) == 1


def test_a_stream_sends_at_once_what_comes_while_it_looks(nsqd: Nsqd) -> None:
    endpoints = endpoints_of(nsqd)
    sub(nsqd)

    async def main() -> bytes | None:
        async with asyncio.timeout(TIMEOUT):
            stream = await endpoints.stream(request_of(AT, headers={b"accept": b"text/event-stream"}))
            assert isinstance(stream, Stream)
            await stream.next_piece()
            nsqd.broker.topic("t").publish_one(b"\0\0\0\4late")  # the next turn, which is the stream's, delivers it
            piece = await stream.next_piece()
            await stream.close()
            return piece

    assert b'"body":"late"' in (asyncio.run(main()) or b"")


# AUTH servers


def test_where_clients_have_to_auth_a_token_is_asked_about(nsqd: Nsqd) -> None:
    questions: list[AuthQuestion] = []
    leasing = leasing_of(nsqd.broker, ask=questions.append)
    endpoints = endpoints_of(nsqd, leasing)
    grant = decode_grant(
        b'{"ttl":60,"identity":"ana","authorizations":[{"topic":"^t$","channels":["c"],"permissions":["subscribe"]}]}'
    )
    token = {b"authorization": b"Bearer secret"}

    async def answered(query: str, **asked: Any) -> int:
        asking = asyncio.ensure_future(endpoints.poll(request_of(query, **asked)))
        await asyncio.sleep(0)
        while questions:
            question = questions.pop()
            assert (question.secret, question.remote_ip) == (b"secret", "10.0.0.1")
            question.answer(grant)
        return (await asking).status

    async def main() -> list[int]:
        async with asyncio.timeout(TIMEOUT):
            return [
                await answered(AT),
                await answered(AT, headers=token),
                await answered("topic=other&channel=c", headers=token),
            ]

    assert asyncio.run(main()) == [401, 200, 403]
    (client,) = (it for it in leasing.leases.http_consumers if it.holder == "ana")
    assert client.snapshot().auth_identity == "ana"


def test_an_auth_server_that_does_not_answer_lets_nobody_in(nsqd: Nsqd) -> None:
    questions: list[AuthQuestion] = []
    endpoints = endpoints_of(nsqd, leasing_of(nsqd.broker, ask=questions.append))

    async def main() -> bytes:
        async with asyncio.timeout(TIMEOUT):
            asking = asyncio.ensure_future(endpoints.poll(request_of(AT, headers={b"authorization": b"Bearer secret"})))
            await asyncio.sleep(0)
            questions.pop().answer(None)
            return (await asking).body

    assert asyncio.run(main()) == code("UNAUTHORIZED")


@pytest.mark.parametrize(("count", "turns"), [(200, 0), (201, 1), (1_000, 1)])
def test_the_lines_of_many_messages_are_made_when_others_had_their_turn(count: int, turns: int) -> None:
    nsqd, passed = Nsqd(within=bounds(in_channel=1_000, of_holder=1_000)), 0
    sub(nsqd)
    nsqd.publishing.limits = SizeLimits(max_message=100, max_body=10_000)
    nsqd.post("/mpub?topic=t", b"x\n" * 1_000)

    async def both() -> Answer | None:
        nonlocal passed
        request = asyncio.ensure_future(ask_in_loop(nsqd.app, "POST", f"/sub?{AT}&max={count}"))
        channel = nsqd.broker.topics["t"].channels["c"]
        while not request.done():
            passed += len(channel.in_flight) > 0
            await asyncio.sleep(0)
        return await request

    answer = asyncio.run(both())
    assert answer is not None
    assert len(lines(answer)) == count
    assert passed == turns
