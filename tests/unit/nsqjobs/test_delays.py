from __future__ import annotations

import pytest

from nsqclient import PublishRejected
from nsqjobs.delays import SHORTENED, DelayLimit, time_left
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
