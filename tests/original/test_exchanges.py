"""Each script of tests/conformance on NSQ's daemon and on ours, in one run: what they say is compared byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.script import Script, read
from tests.conformance.sockets import Servers, talk
from tests.original.programs import FOLDER

Both = tuple[Servers, Servers]
LIMIT = 5.0  # seconds for an answer


def named(script: Script) -> str:
    return f"{script.server}: {script.title}".replace(" ", "-")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with ExitStack() as running:
        theirs = Servers(tmp_path_factory.mktemp("nsq"), running, originals=Path(FOLDER))
        yield theirs, Servers(tmp_path_factory.mktemp("ours"), running)


@pytest.mark.parametrize("script", read(), ids=named)
def test_both_say_the_same(both: Both, script: Script) -> None:
    theirs, ours = (servers.of(script.server) for servers in both)
    said_by_nsq = talk(script, theirs, "nsq", limit=LIMIT)
    said_by_ours = talk(script, ours, "ours", limit=LIMIT)
    assert said_by_nsq == script.expected("nsq"), f"NSQ's: {script.place}"
    assert said_by_ours == script.expected("ours"), f"ours: {script.place}"
    assert bool(script.differs) == (said_by_nsq != said_by_ours)
