from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.job_reports import (
    MOST_EVENTS,
    MOST_TEXT,
    MOST_TRACEBACK,
    JobEvent,
    JobReport,
    State,
    decode,
    encode,
    end_of,
    one_line,
)


def event(**fields: object) -> JobEvent:
    known = {
        "state": State.FAILED,
        "name": "charge",
        "id": "a-1",
        "library": "celery",
        "topic": "mails",
        "channel": "jobs",
        "worker": "here:7",
        "started_at": 1000.5,
        "ms": 12.5,
        "outcome": "buried",
        "error": "ValueError: no such order",
        "traceback": "Traceback\nValueError: no such order\n",
    }
    return JobEvent(**{**known, **fields})  # type: ignore[arg-type]


def test_a_report_survives_the_way() -> None:
    started = event(state=State.STARTED, ms=None, outcome="", error="", traceback="", worker="here:8")
    report = JobReport(worker="here:7", events=(event(), started), is_whole=True, dropped=3)
    assert decode(encode(report)) == report


def test_an_end_is_known_by_start_and_duration() -> None:
    assert event(started_at=1000.0, ms=1500.0).ended_at == 1001.5


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda it: st.lists(it) | st.dictionaries(st.text(), it),
    )
)
def test_other_json_is_refused(said: object) -> None:
    with pytest.raises(ValueError):
        decode(json.dumps(said).encode())


@given(st.binary())
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode(body)


@pytest.mark.parametrize(
    "field", ["state", "name", "id", "worker", "topic", "started_at", "ms", "attempts", "retries", "error", "traceback"]
)
@pytest.mark.parametrize("value", [[1], {"x": 1}, -1, True, float("inf"), 1e300, None])
def test_a_field_of_another_kind_is_refused(field: str, value: object) -> None:
    if field == "ms" and value is None:
        return  # unknown
    document = json.loads(encode(JobReport(worker="here:7", events=(event(),))))
    document["events"][0][field] = value
    with pytest.raises(ValueError):
        decode(json.dumps(document).encode())


def test_too_many_events_are_refused() -> None:
    with pytest.raises(ValueError):
        decode(encode(JobReport(worker="w", events=(event(traceback=""),) * (MOST_EVENTS + 1))))


def test_long_texts_of_others_are_cut() -> None:
    document = json.loads(encode(JobReport(worker="here:7", events=(event(),))))
    document["events"][0] |= {"name": "n" * 9999, "traceback": "line\n" * 9999}
    (read,) = decode(json.dumps(document).encode()).events
    assert len(read.name) == MOST_TEXT
    assert len(read.traceback) <= MOST_TRACEBACK


@given(st.text(alphabet=st.characters(codec="utf-8")).map(lambda text: text * 50))
def test_the_end_of_a_traceback_is_kept(text: str) -> None:
    kept = end_of(text)
    assert len(kept.encode()) <= MOST_TRACEBACK
    assert text.endswith(kept.removeprefix("...\n"))
    assert kept == text or kept.startswith("...\n")


def test_an_error_is_one_short_line() -> None:
    assert one_line(ValueError("no such\norder:  7")) == "ValueError: no such order: 7"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 100_000))) == MOST_TEXT


def test_an_error_that_cannot_be_printed_has_a_line() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert one_line(Broken()) == "Broken: (its text can't be printed)"


def test_half_a_surrogate_pair_becomes_an_escape() -> None:
    body = b'{"version":1,"worker":"h:1","events":[{"state":"failed","name":"\\ud800","id":"1","started_at":1}]}'
    (event,) = decode(body).events
    assert event.name == "\\ud800"
