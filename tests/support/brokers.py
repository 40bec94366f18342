"""What tests with a real broker share: a broker for each module, more of them on request, and their logs on failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.support.process import Daemon, Nsqd

StartNsqd = Callable[..., Nsqd]

_LONGEST_LOG: Final = 20_000  # characters from the end of a log
started = pytest.StashKey[list[Daemon]]()


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Run one broker with NSQ's defaults for all tests of a module. Each test uses topics of its own."""
    with Nsqd(tmp_path_factory.mktemp("nsqd")) as broker:
        yield broker
        assert "Traceback" not in broker.log


@pytest.fixture
def start_nsqd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartNsqd]:
    """Return a function that starts a broker with these options (flags without dashes) on an empty data path."""
    brokers: list[Daemon] = []
    request.node.stash[started] = brokers
    with ExitStack() as running:

        def start(*options: str, kind: type[Nsqd] = Nsqd) -> Nsqd:
            broker = kind(tmp_path / f"nsqd-{len(brokers)}", *options)
            brokers.append(broker)
            return running.enter_context(broker)

        yield start


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic name that no other test uses."""
    name: str = request.node.name
    return re.sub(r"[^.a-zA-Z0-9_-]", "-", name)[-64:]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        shared = [it for it in item.funcargs.values() if isinstance(it, Daemon)]
        for daemon in [*shared, *item.stash.get(started, [])]:
            title = f"log of {daemon.program} {' '.join(daemon.options)}"
            report.sections.append((title, daemon.log[-_LONGEST_LOG:]))
    return report
