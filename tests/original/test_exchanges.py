"""Each script of tests/conformance on NSQ's daemon and on ours, in one run: what they say is compared byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import sockets
from tests.conformance.script import Script, read
from tests.original.programs import program
from tests.support.process import Daemon, Nsqd, Nsqlookupd

Both = tuple[Daemon, Daemon]
LIMIT = 5.0  # seconds for an answer


def named(script: Script) -> str:
    return script.title.replace(" ", "-")


@pytest.fixture(scope="module")
def nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder: Path = tmp_path_factory.mktemp("nsqds")
    ours, theirs = (Nsqd(folder / name, *sockets.NSQD_OPTIONS) for name in ("ours", "nsq"))
    theirs.command = (str(program("nsqd")),)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture(scope="module")
def nsqlookupds() -> Iterator[Both]:
    ours, theirs = Nsqlookupd(), Nsqlookupd()
    theirs.command = (str(program("nsqlookupd")),)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("script", read("nsqd"), ids=named)
def test_nsqd(nsqds: Both, script: Script) -> None:
    compare(script, *nsqds)


@pytest.mark.parametrize("script", read("nsqlookupd"), ids=named)
def test_nsqlookupd(nsqlookupds: Both, script: Script) -> None:
    compare(script, *nsqlookupds)


def compare(script: Script, ours: Daemon, theirs: Daemon) -> None:
    said = {"nsq": sockets.talk(script, theirs, "nsq", limit=LIMIT), "ours": sockets.talk(script, ours, limit=LIMIT)}
    assert said["nsq"] == [str(line) for line in script.of("nsq")], f"NSQ's daemon: {script.place}"
    assert said["ours"] == [str(line) for line in script.of("ours")], f"our daemon: {script.place}"
    assert bool(script.differs) == (said["nsq"] != said["ours"])
