"""What requests and answers about messages by key mean."""

from __future__ import annotations

import pytest

from nsqclient import CancelResult, ConnectError, Incomplete, NodeFailure, NSQError, Unsupported
from nsqclient.core.recall import cancel_target, read_counts, reschedule_target, summed

NOT_KNOWN = ("MESSAGE_NOT_FOUND", "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")
COUNTS = b'{"cancelled": 2, "in_flight": 1, "buried": 0, "done": 1, "unknown": 0, "later": 5}'


def test_targets() -> None:
    assert cancel_target("t", "a&b=%", None) == "/message/cancel?topic=t&key=a%26b%3D%25"
    assert reschedule_target("t", "k", "c#ephemeral", 0.0015) == (
        "/message/due?topic=t&key=k&channel=c%23ephemeral&defer=2"
    )


@pytest.mark.parametrize("code", NOT_KNOWN)
def test_no_message_is_an_answer(code: str) -> None:
    assert read_counts(404, b'{"message":"%s"}' % code.encode(), CancelResult) == {}


@pytest.mark.parametrize("body", [b'{"message":"NOT_FOUND"}', b"<html>", b"[]", b""])
def test_another_404_is_none(body: bytes) -> None:
    with pytest.raises(Unsupported):
        read_counts(404, body, CancelResult)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"{}", "malformed answer: KeyError('in_flight')"),
        (200, b"\xff", "malformed answer: KeyError('in_flight')"),
        (200, COUNTS.replace(b"1", b"null"), "malformed answer"),
        (400, b'{"message":"INVALID_DEFER"}', "got response 400 INVALID_DEFER"),
        (403, b'{"message":"FORBIDDEN","reason":"no right"}', "got response 403 FORBIDDEN: no right"),
        (421, b'{"message":"WRONG_NODE","reason":"x"}', "another nsqd answers at its HTTP port"),
        (500, b"", "got response 500"),
    ],
)
def test_an_answer_that_says_nothing(status: int, body: bytes, said: str) -> None:
    with pytest.raises(ConnectError) as raised:
        read_counts(status, body, CancelResult)
    assert str(raised.value).startswith(said)


def test_answers_are_summed_and_failures_named() -> None:
    counts = read_counts(200, COUNTS, CancelResult)
    assert summed(CancelResult, [("a", counts), ("b", {}), ("c", counts)]) == CancelResult(
        cancelled=4, in_flight=2, done=2
    )
    errors: list[tuple[str, NSQError]] = [("b", ConnectError("refused")), ("c", Unsupported("old"))]
    with pytest.raises(Incomplete) as raised:
        summed(CancelResult, [("a", counts), *errors])
    failures = (NodeFailure("b", "refused"), NodeFailure("c", "old"))
    assert raised.value.result == CancelResult(cancelled=2, in_flight=1, done=1, failures=failures)
    with pytest.raises(Incomplete):
        summed(CancelResult, errors)
    with pytest.raises(Unsupported, match="old"):
        summed(CancelResult, errors[1:])
