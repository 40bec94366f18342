"""POST /pub and /mpub through the application: results, errors, and the order in which errors are found."""

from __future__ import annotations

import tracemalloc
from typing import Final

import pytest

from nsqcommon.wire.limits import SizeLimits
from nsqd.broker.keys import KeyMemory
from nsqd.broker.reclaimer import Reclaimer
from nsqd.http.mpub_body import LinesBody
from tests.nsqd.fake_broker import binary_mpub
from tests.nsqd.http.conftest import Nsqd
from tests.support.asgi import Answer, ask

PIECE: Final = 1 << 16  # bytes


def error(code: str) -> bytes:
    return b'{"message":"%s"}' % code.encode()


def test_pub_answers_ok_and_keeps_the_body(nsqd: Nsqd) -> None:
    answer = nsqd.post("/pub?topic=t", b"hello\n")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers == {
        "x-nsq-content-type": "nsq; version=1.0",
        "content-length": "2",
        "content-type": "text/plain; charset=utf-8",
    }
    assert nsqd.bodies("t") == [b"hello\n"]
    assert nsqd.turn.finished == 1


@pytest.mark.parametrize(
    ("target", "body", "status", "code"),
    [
        ("/pub", b"", 400, "MSG_EMPTY"),  # before any look at the topic
        ("/pub?topic=%zz", b"", 400, "MSG_EMPTY"),
        ("/pub?topic=%zz", b"x" * 101, 413, "MSG_TOO_BIG"),
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=a%0A", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=a%20b&defer=x", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=t;a=b", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=t&x=%2", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=t&defer=", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=1.5", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=1_0", b"x", 400, "INVALID_DEFER"),
        ("/mpub?topic=%zz", b"x" * 501, 413, "BODY_TOO_BIG"),
        ("/mpub", b"", 400, "MISSING_ARG_TOPIC"),
        ("/mpub?topic=;", b"", 400, "INVALID_REQUEST"),
        ("/mpub?topic=?", b"", 400, "INVALID_TOPIC"),
        ("/mpub?topic=t", b"a\n" + b"x" * 101, 413, "MSG_TOO_BIG"),
        ("/mpub?topic=t&defer=x", b"", 400, "INVALID_DEFER"),
        ("/mpub?topic=t&key=", b"x", 400, "INVALID_KEY"),
        ("/mpub?topic=t&key=a%20b", b"x", 400, "INVALID_KEY"),
        ("/pub?topic=t&key=%c3%a4", b"x", 400, "INVALID_KEY"),
        (f"/pub?topic=t&key={'k' * 65}", b"x", 400, "INVALID_KEY"),
        ("/mpub?topic=t&binary=true", b"", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\0", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=True", b"\0\0\0\1\0\0\0\0", 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=", b"\0\0\0\1\0\0\0\2a", 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\0\x65" + b"x" * 101, 413, "BAD_MESSAGE"),
    ],
)
def test_errors_come_in_the_order_of_the_original(nsqd: Nsqd, target: str, body: bytes, status: int, code: str) -> None:
    for _ in range(2):  # parsed queries are remembered, which must not change answers
        answer = nsqd.post(target, body)
        assert (answer.status, answer.body) == (status, error(code))
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert all(not log.batches for log in nsqd.store.logs.values())


@pytest.mark.parametrize(("target", "body", "made"), [
    ("/pub?topic=t", b"", False),
    ("/pub?topic=t&defer=x", b"x", True),
    ("/mpub?topic=t", b"x" * 501, False),
    ("/mpub?topic=t&binary=true", b"", True),
])  # fmt: skip
def test_failed_publishes_make_the_topic_where_the_original_does(
    nsqd: Nsqd, target: str, body: bytes, made: bool
) -> None:
    nsqd.post(target, body)
    assert ("t" in nsqd.broker.topics) is made


def test_too_long_a_body_is_refused_before_it_is_read(nsqd: Nsqd) -> None:
    answer = nsqd.post("/pub?topic=t", b"x" * 101)
    assert answer.read == 0
    assert answer.headers["connection"] == "close"


def test_bad_topic_of_mpub_is_refused_before_the_body_is_read(nsqd: Nsqd) -> None:
    assert nsqd.post("/mpub?topic=!", b"x").read == 0


def test_chunked_body_is_read_no_further_than_the_limit(nsqd: Nsqd) -> None:
    answer = nsqd.post("/pub?topic=t", [b"x" * 60] * 10)
    assert (answer.status, answer.body, answer.read) == (413, error("MSG_TOO_BIG"), 2)


def test_limits_are_inclusive(nsqd: Nsqd) -> None:
    assert nsqd.post("/pub?topic=t", b"x" * 100).status == 200
    assert nsqd.post("/pub?topic=t", [b"x" * 50, b"x" * 50]).status == 200
    assert nsqd.post("/mpub?topic=t", b"\n".join([b"x" * 99] * 5)).status == 200
    assert len(nsqd.bodies("t")) == 7


@pytest.mark.parametrize("value", ["0", "+5", "-0", "3600000", "007"])
def test_defer_takes_a_signed_decimal(nsqd: Nsqd, value: str) -> None:
    assert nsqd.post(f"/pub?topic=t&defer={value}".replace("+", "%2B"), b"x").status == 200
    assert nsqd.store.logs["t"].batches[0].delay_ms == int(value)


def test_first_of_repeated_arguments_wins(nsqd: Nsqd) -> None:
    nsqd.post("/pub?&topic=first&topic=second&", b"x")
    assert set(nsqd.broker.topics) == {"first"}


def test_text_mpub_splits_at_newlines_only(nsqd: Nsqd) -> None:
    assert nsqd.post("/mpub?topic=t", b"a\r\n\n\nb\n c").body == b"OK"
    assert nsqd.bodies("t") == [b"a\r", b"b", b" c"]


def test_the_last_turn_of_a_long_text_mpub_copies_nothing_that_came_before() -> None:
    body = LinesBody(SizeLimits(max_message=100, max_body=1 << 20))
    tracemalloc.start()
    try:
        for _ in range((1 << 20) // PIECE):
            body.receive(b"x\n" * (PIECE // 2))
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        payload, offsets = body.cut()  # type: ignore[misc]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(payload), len(offsets)) == (5 << 19, (1 << 19) + 1)
    assert most - before < PIECE


@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\n"])
def test_text_mpub_of_nothing_is_ok(nsqd: Nsqd, body: bytes) -> None:
    assert nsqd.post("/mpub?topic=t", body).body == b"OK"
    assert nsqd.bodies("t") == []


@pytest.mark.parametrize("word", ["true", "1", "True", "yes", ""])
def test_binary_mpub_takes_counted_messages_and_ignores_what_follows(nsqd: Nsqd, word: str) -> None:
    assert nsqd.post(f"/mpub?topic=t&binary={word}", binary_mpub([b"aa", b"\n"]) + b"rest").body == b"OK"
    assert nsqd.bodies("t") == [b"aa", b"\n"]


@pytest.mark.parametrize("word", ["false", "0"])
def test_mpub_that_is_not_binary(nsqd: Nsqd, word: str) -> None:
    nsqd.post(f"/mpub?topic=t&binary={word}", b"a\nb")
    assert nsqd.bodies("t") == [b"a", b"b"]


def test_other_words_for_binary_are_warned_of(nsqd: Nsqd, caplog: pytest.LogCaptureFixture) -> None:
    nsqd.post("/mpub?topic=t&binary=True", binary_mpub([b"a"]))
    assert "deprecated value 'True' used for /mpub binary param" in caplog.text


@pytest.mark.parametrize(("body", "code"), [
    ([b"x" * 300, b"\n" * 300], "MSG_TOO_BIG"),
    ([b"\n" * 500, b"x" * 300], "BODY_TOO_BIG"),
    ([b"\n" * 450, b"x" * 300], "BODY_TOO_BIG"),
    ([b"\n" * 600], "BODY_TOO_BIG"),
    ([b"\n" * 350, b"x" * 150 + b"\n" + b"x"], "BODY_TOO_BIG"),  # ends with the first byte too many
    ([b"\n" * 349, b"x" * 150 + b"\n" + b"xx"], "MSG_TOO_BIG"),
])  # fmt: skip
def test_long_text_fails_at_the_first_line_that_is_wrong(nsqd: Nsqd, body: list[bytes], code: str) -> None:
    assert nsqd.post("/mpub?topic=t", body).body == error(code)


@pytest.mark.parametrize("target", ["/pub?topic=t", "/mpub?topic=t"])
def test_any_failure_of_the_log_is_exiting(nsqd: Nsqd, target: str) -> None:
    nsqd.store.error = "no space left on device"
    answer = nsqd.post(target, b"x")
    assert (answer.status, answer.body) == (503, error("EXITING"))


@pytest.mark.parametrize("target", ["/pub?topic=t", "/mpub?topic=t"])
def test_closing_topic_refuses(nsqd: Nsqd, target: str) -> None:
    nsqd.broker.topic("t").close()
    answer: Answer = nsqd.post(target, b"x")
    assert (answer.status, answer.body) == (503, error("EXITING"))


def test_publishes_are_not_logged(nsqd: Nsqd, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        nsqd.post("/pub?topic=t", b"x")
        ask(nsqd.app, "POST", "/mpub?topic=t", b"x")
    assert caplog.messages == []


def test_mpub_with_a_key_publishes_once(nsqd: Nsqd) -> None:
    nsqd.broker.turn.keys = KeyMemory(60_000_000_000, 1000, Reclaimer())
    for _ in range(2):
        assert nsqd.post("/mpub?topic=t&key=q/1/0", b"a\nb").status == 200
    assert nsqd.bodies("t") == [b"a", b"b"]
    assert nsqd.post(f"/mpub?topic=t&key={'x' * 256}", b"a").body == error("INVALID_KEY")


def test_pub_with_a_key_publishes_once(nsqd: Nsqd) -> None:
    for _ in range(2):
        assert nsqd.post("/pub?topic=t&key=k", b"a").status == 200
    nsqd.post("/pub?topic=t&key=k2&defer=1000", b"b")
    nsqd.post("/mpub?topic=t&key=k2", b"c\nd")
    assert [batch.count for batch in nsqd.store.logs["t"].batches] == [1, 1]


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
def test_without_a_window_keys_are_refused(nsqd: Nsqd, path: str) -> None:
    nsqd.broker.turn.keys = KeyMemory(0, 1000, Reclaimer())
    answer = nsqd.post(f"{path}?topic=t&key=k", b"x")
    assert (answer.status, answer.body) == (400, error("INVALID_KEY"))


def test_mpub_can_be_deferred(nsqd: Nsqd) -> None:
    assert nsqd.post("/mpub?topic=t&defer=5000", b"a\nb").status == 200
    assert [batch.delay_ms for batch in nsqd.store.logs["t"].batches] == [5000]
