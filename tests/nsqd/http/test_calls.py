"""A journal that cannot be written, as HTTP tells of it."""

from __future__ import annotations

import pytest

from nsqd.broker.store import NotSynced
from tests.nsqd.fake_broker import bodies
from tests.nsqd.http.conftest import Nsqd, code


@pytest.mark.parametrize(
    "path",
    [
        "/topic/create?topic=new",
        "/topic/delete?topic=t",
        "/topic/pause?topic=t",
        "/channel/create?topic=t&channel=new",
        "/channel/delete?topic=t&channel=c",
        "/channel/pause?topic=t&channel=c",
        "/channel/empty?topic=t&channel=c",
    ],
)
def test_operation_that_is_not_in_the_journal_has_failed(nsqd: Nsqd, path: str) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.turn.journal_error = "no space left on device"
    answer = nsqd.post(path)
    assert (answer.status, answer.body) == (500, code("INTERNAL_ERROR"))


@pytest.mark.parametrize(
    "path",
    [
        "/topic/delete?topic=t",
        "/topic/empty?topic=t",
        "/topic/pause?topic=t",
        "/channel/delete?topic=t&channel=c",
        "/channel/pause?topic=t&channel=c",
    ],
)
def test_operation_that_is_not_synced_has_failed(
    nsqd: Nsqd, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise NotSynced("fsync journal.000001: input/output error")

    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    monkeypatch.setattr(nsqd.turn, "durable", fail)
    answer = nsqd.post(path)
    assert (answer.status, answer.body) == (500, code("INTERNAL_ERROR"))
    assert "change not yet on disk error=fsync journal.000001: input/output error" in caplog.text
    assert "Traceback" not in caplog.text


def test_what_changes_nothing_needs_no_journal(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.turn.journal_error = "no space left on device"
    assert nsqd.post("/topic/create?topic=t").status == 200
    assert nsqd.post("/channel/create?topic=t&channel=c").status == 200


@pytest.mark.parametrize("path", ["/pub?topic=t", "/mpub?topic=t", "/pub?topic=new"])
def test_nothing_is_published_while_the_journal_is_broken(nsqd: Nsqd, path: str) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.turn.journal_error = "no space left on device"
    answer = nsqd.post(path, b"x")
    assert (answer.status, answer.body) == (503, code("EXITING"))
    assert bodies(nsqd.store, "t") == []
