from __future__ import annotations

from datetime import UTC, datetime

from nsqcommon.wire.headers import decode_headers, encode_headers
from nsqjobs.headers import Job, eta_of, eta_of_time


def test_headers_travel() -> None:
    job = Job(library="taskiq", name="mail:send", id="7f", retries=2, eta=1.25)
    headers = decode_headers(encode_headers(job.headers()))
    assert headers == {
        "job-library": b"taskiq",
        "job-name": b"mail:send",
        "job-id": b"7f",
        "job-retries": b"2",
        "job-eta": b"1250",
    }
    assert eta_of(headers) == 1.25


def test_long_names_fit() -> None:
    encode_headers(Job(library="celery", name="n" * 5000, id="é" * 5000).headers())


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert eta_of_time(datetime(1970, 1, 1, 0, 1)) == eta_of_time(datetime(1970, 1, 1, 0, 1, tzinfo=UTC)) == 60
