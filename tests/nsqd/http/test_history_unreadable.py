"""HTTP answers when the disk refuses to read history."""

from __future__ import annotations

import errno
from unittest.mock import Mock

import pytest

from nsqd.http import HistoryReads
from tests.nsqd.http.conftest import Nsqd
from tests.nsqd.http.fake_history import at_once


@pytest.mark.parametrize(
    ("method", "target"), [("GET", "/topic/read?topic=t"), ("POST", "/channel/create?topic=t&channel=c")]
)
def test_place_by_time_that_cannot_be_read_may_be_asked_for_again(method: str, target: str) -> None:
    past = Mock(first=0, next=1)
    past.sequence_at.side_effect = OSError(errno.EIO, "Input/output error")
    nsqd = Nsqd(HistoryReads(Mock(find=Mock(return_value=past)), at_once))
    nsqd.post("/topic/create?topic=t")
    ask = nsqd.get if method == "GET" else nsqd.post
    answer = ask(f"{target}&from=2024-01-01T00:00:00Z")
    assert (answer.status, answer.body) == (503, b'{"message":"CANNOT_READ"}')


def test_points_that_cannot_be_read_may_be_asked_for_again() -> None:
    past = Mock(first=0, next=1)
    past.points.side_effect = OSError(errno.EIO, "Input/output error")
    nsqd = Nsqd(HistoryReads(Mock(find=Mock(return_value=past)), at_once))
    nsqd.post("/topic/create?topic=t")
    answer = nsqd.get("/topic/log?topic=t&points=10")
    assert (answer.status, answer.body) == (503, b'{"message":"CANNOT_READ"}')
