from __future__ import annotations

from collections.abc import Mapping

import pytest

from nsqclient import PublishRejected, Unsupported
from nsqjobs.delays import SHORTENED, DelayLimit, give_back_early, time_left
from nsqjobs.headers import ETA, Job


def refused(limit: int) -> PublishRejected:
    return PublishRejected("E_INVALID", f"E_INVALID DPUB timeout 99999999 out of range 0-{limit}")


def test_a_refused_delay_is_shortened_to_what_nsqd_accepts() -> None:
    limit = DelayLimit()
    assert limit.shorten(7200) == 7200
    assert limit.learn(refused(3_600_000), 7200)
    assert limit.shorten(7200) == 3600
    assert limit.shorten(60) == 60
    assert limit.shorten(0) is None


def test_another_refusal_is_not_about_the_delay() -> None:
    assert not DelayLimit().learn(PublishRejected("E_PUB_FAILED", "E_PUB_FAILED no room"), 7200)


def test_a_limit_that_was_kept_is_no_way_out() -> None:
    limit = DelayLimit()
    assert limit.learn(refused(3_600_000), 7200)
    assert not limit.learn(refused(3_600_000), 7200)


def test_time_left_of_a_job_whose_delay_was_shortened() -> None:
    limit = DelayLimit()
    assert limit.learn(refused(5_000), 10.5)
    job = Job(library="celery", name="shop.ship", id="1", eta=1000.5)
    headers = limit.marked(job.headers(), 10.5)
    assert time_left(headers, 990.0) == pytest.approx(10.5)
    assert time_left(headers, 1001.0) == 0
    assert time_left({SHORTENED: b"1", ETA: b"soon"}, 0.0) == 0


def test_a_job_whose_delay_nsqd_accepted_is_due_whenever_it_comes() -> None:
    headers = DelayLimit().marked(Job(library="celery", name="shop.ship", id="1", eta=1000.5).headers(), 10.5)
    assert SHORTENED not in headers
    assert time_left(headers, 990.0) == time_left({}, 0.0) == 0


class FakeMessage:
    """A message that writes down how it was requeued."""

    def __init__(self, headers: Mapping[str, bytes] | None, *, counts_always: bool = False) -> None:
        self._headers = headers
        self._counts_always = counts_always
        self.said: list[tuple[float, bool, bool]] = []

    @property
    def headers(self) -> Mapping[str, bytes]:
        if self._headers is None:
            raise ValueError("nonsense")
        return self._headers

    def requeue(self, delay: float, *, backoff: bool, count: bool) -> bool:
        if self._counts_always:
            raise Unsupported("nsqd counts every attempt")
        self.said.append((delay, backoff, count))
        return False  # it is lost


EARLY = {SHORTENED: b"1", ETA: b"10000"}


def test_a_job_that_comes_early_is_given_back_for_the_rest_uncounted() -> None:
    message = FakeMessage(EARLY)
    assert give_back_early(message, 4.0)
    assert message.said == [(6.0, False, False)]


@pytest.mark.parametrize(
    "message",
    [FakeMessage({}), FakeMessage(None), FakeMessage(EARLY, counts_always=True)],
    ids=["due", "nonsense", "no uncounted requeue"],
)
def test_a_job_that_cannot_be_given_back_is_due(message: FakeMessage) -> None:
    assert not give_back_early(message, 4.0)
    assert not message.said
