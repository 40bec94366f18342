"""`/topic/reader`: reports of readers, and how `/topic/log` and `/metrics` show them."""

from __future__ import annotations

import errno
import json
from typing import Any
from unittest.mock import Mock

import pytest

from nsqd.http import HistoryReads
from tests.nsqd.http.conftest import Nsqd
from tests.nsqd.http.fake_history import at_once
from tests.nsqd.http.whole.test_metrics import parsed
from tests.support.asgi import Answer

REPORT: dict[str, Any] = {"name": "land", "log": "a", "sequence": 4, "into": "/t", "format": "delta", "host": "h"}


@pytest.fixture
def past() -> Mock:
    past = Mock(first=0, next=10, log_id="a", segments=1, bytes=0, retention_time=0, retention_bytes=0)
    past.times.return_value = (1, 2)
    past.points.side_effect = lambda start, end, most: [(start, 1000 + start, 0), (end, 2000, (end - start) * 50)]
    return past


@pytest.fixture
def nsqd(past: Mock) -> Nsqd:
    history = Mock(find=Mock(side_effect=lambda topic, synced=True: past if topic == "t" else None), node="n")
    nsqd = Nsqd(HistoryReads(history, at_once))
    nsqd.post("/topic/create?topic=t")
    return nsqd


def report(nsqd: Nsqd, topic: str = "t", **changes: object) -> Answer:
    return nsqd.post(f"/topic/reader?topic={topic}", json.dumps({**REPORT, **changes}).encode())


def readers(nsqd: Nsqd) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(nsqd.get("/topic/log?topic=t&readers=true").body)["readers"]
    return found


def test_a_reader_is_shown_with_what_it_is_behind(nsqd: Nsqd) -> None:
    assert readers(nsqd) == []
    assert report(nsqd).status == 200
    (found,) = readers(nsqd)
    assert found.pop("heard") == found.pop("committed") > 0
    assert found == {
        **REPORT,
        "rate": None,
        "behind": 6,
        "behind_bytes": 300,
        "behind_since": 1004,
        "missed": 0,
    }


def test_who_does_not_ask_for_readers_sees_none(nsqd: Nsqd) -> None:
    before = nsqd.get("/topic/log?topic=t").body
    report(nsqd)
    assert nsqd.get("/topic/log?topic=t").body == before


def test_a_reader_that_has_everything_costs_no_look_at_the_disk(nsqd: Nsqd, past: Mock) -> None:
    report(nsqd, sequence=10)
    (found,) = readers(nsqd)
    assert (found["behind"], found["behind_bytes"], found["behind_since"]) == (0, 0, None)
    past.points.assert_not_called()


def test_what_retention_has_taken_is_told(nsqd: Nsqd, past: Mock) -> None:
    report(nsqd)
    past.first = 7
    (found,) = readers(nsqd)
    assert (found["behind"], found["missed"], found["behind_since"]) == (3, 3, 1007)


def test_a_log_made_anew_is_behind_as_a_whole(nsqd: Nsqd, past: Mock) -> None:
    report(nsqd)
    past.log_id = "b"
    (found,) = readers(nsqd)
    assert (found["log"], found["behind"], found["missed"]) == ("a", 10, 0)


def test_a_time_that_the_disk_does_not_tell_is_unknown(nsqd: Nsqd, past: Mock) -> None:
    report(nsqd)
    past.points.side_effect = OSError(errno.EIO, "Input/output error")
    (found,) = readers(nsqd)
    assert (found["behind"], found["behind_bytes"], found["behind_since"]) == (6, None, None)


@pytest.mark.parametrize(
    ("topic", "changes", "status", "code"),
    [
        ("t", {"name": ""}, 400, "INVALID_BODY"),
        ("t", {"into": "a" * 9000}, 400, "INVALID_BODY"),
        ("t", {"log": "b"}, 409, "ANOTHER_LOG"),
        ("t", {"sequence": 11}, 400, "BEYOND_END"),
        ("", {}, 400, "INVALID_ARG_TOPIC"),
        ("u", {}, 404, "TOPIC_NOT_FOUND"),
    ],
)
def test_reports_that_are_refused(nsqd: Nsqd, topic: str, changes: dict[str, object], status: int, code: str) -> None:
    answer = report(nsqd, topic, **changes)
    assert (answer.status, json.loads(answer.body)["message"]) == (status, code)
    assert readers(nsqd) == []


def test_an_ephemeral_topic_has_no_readers(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=e%23ephemeral")
    assert json.loads(report(nsqd, "e%23ephemeral").body)["message"] == "EPHEMERAL_TOPIC"


def test_a_reader_is_forgotten(nsqd: Nsqd) -> None:
    report(nsqd)
    assert nsqd.post("/topic/reader/delete?topic=t").body == b'{"message":"MISSING_ARG_NAME"}'
    assert nsqd.post("/topic/reader/delete?topic=t&name=land").body == b'{"message":"READER_NOT_FOUND"}'
    assert nsqd.post("/topic/reader/delete?topic=t&name=land&into=/t").status == 200
    assert readers(nsqd) == []


def test_metrics_have_the_lag_of_each_reader(nsqd: Nsqd) -> None:
    report(nsqd)
    kinds, samples = parsed(nsqd.get("/metrics").body)
    labels = (("topic", "t"), ("reader", "land"), ("into", "/t"))
    assert kinds["nsqd_reader_behind"] == kinds["nsqd_reader_silent_seconds"] == "gauge"
    assert samples["nsqd_reader_behind", labels] == 6
    assert samples["nsqd_reader_silent_seconds", labels] >= 0
