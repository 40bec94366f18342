"""A clock that is set while nsqd is down, and a data path that disappears while nsqd runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nsqcommon.wire.commands import dpub, rdy, sub
from tests.support.client import Refused
from tests.support.needs import faketime
from tests.support.process import Nsqd, eventually

HOUR = 3600


def jump_of(nsqd: Nsqd) -> float:
    found = re.search(r"^nsqd_clock_jump_seconds (\S+)$", nsqd.http("GET", "/metrics").body.decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.needs("libfaketime")
@pytest.mark.parametrize(
    ("hours", "words"), [(1, "was set forward by 3600 s"), (-1, "was set back by at least 3600 s")]
)
def test_clock_that_was_set_while_nsqd_was_down_is_told_and_ends_delays_by_as_much(
    tmp_path: Path, hours: int, words: str
) -> None:
    library = str(faketime())
    with Nsqd(tmp_path / "data") as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        assert nsqd.connect().ask(dpub("t", 1800 * 1000, b"in half an hour")) == b"OK"
        assert jump_of(nsqd) == 0
        nsqd.kill()
    environ = {"LD_PRELOAD": library, "FAKETIME": f"{hours * HOUR:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with Nsqd(tmp_path / "data", environ=environ) as nsqd:
        assert nsqd.log.count("the wall clock") == 1
        assert words in nsqd.log
        assert abs(jump_of(nsqd) - hours * HOUR) < 60
        consumer = nsqd.connect()
        consumer.send(sub("t", "c"), rdy(1))
        assert consumer.response() == b"OK"
        if hours > 0:
            assert consumer.message().body == b"in half an hour"
        else:
            assert nsqd.channel("t")["deferred_count"] == 1


def test_restart_is_no_jump(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        nsqd.restart()
        assert jump_of(nsqd) == 0
        assert "the wall clock" not in nsqd.log


def is_refused(nsqd: Nsqd) -> bool:
    try:
        return nsqd.connect().ask(b"PUB t\n\0\0\0\1x") != b"OK"
    except Refused as error:
        return "E_PUB_FAILED" in str(error)


def test_data_path_that_was_moved_away_is_noticed_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        nsqd.connect().publish("t", b"before")
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        eventually(lambda: b"was deleted or moved away" in nsqd.http("GET", "/ping").body)
        assert is_refused(nsqd)
        assert eventually(lambda: "was deleted or moved away" in nsqd.log)
        (tmp_path / "elsewhere").rename(tmp_path / "data")
        eventually(lambda: nsqd.http("GET", "/ping").status == 200)
        nsqd.connect().publish("t", b"after")
        nsqd.restart()
        assert nsqd.topic("t")["depth"] == 2


@pytest.mark.parametrize("deleted", ["", "topics"])
def test_data_path_that_was_deleted_refuses_publishing(tmp_path: Path, deleted: str) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        nsqd.connect().publish("t", b"before")
        shutil.rmtree(tmp_path / "data" / deleted)
        eventually(lambda: b"was deleted or moved away" in nsqd.http("GET", "/ping").body)
        assert is_refused(nsqd)


def test_data_path_that_was_replaced_refuses_publishing_and_is_left_alone(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        nsqd.connect().publish("t", b"before")
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        subprocess.run(["cp", "-r", tmp_path / "elsewhere", tmp_path / "data"], check=True)
        eventually(lambda: b"was replaced by another folder" in nsqd.http("GET", "/ping").body)
        before = sorted(path.name for path in (tmp_path / "data").iterdir())
        assert is_refused(nsqd)
        assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before
