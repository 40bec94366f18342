"""Settings and fixtures of all tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import Scheduling

from nsqcommon.logs import OUR_PACKAGES
from nsqpipe import shared_classes
from tests.support import forked, hangs
from tests.support.distribution import FromBothEnds, shuffled
from tests.support.examples import QUICK, USUAL
from tests.support.levels import levels
from tests.support.needs import Unusable, missing, need, needed_by
from tests.support.skips import SkipReport

pytest_plugins = ["pytester", "tests.support.brokers", "tests.support.collected_once"]
STDERR = 2  # its descriptor
blocked = pytest.StashKey[set[signal.Signals | int]]()  # before a test
loggers = [logging.getLogger(name) for name in (None, "nsqtools", "__main__", *OUR_PACKAGES)]
log_levels = pytest.StashKey[list[int]]()  # theirs, before a test

# A slow machine is no failure. In CI the examples are the same each time, so that a red run is about the change;
# elsewhere they are new each time, which is where new failures are to be found.
settings.register_profile("suite", deadline=None, derandomize="CI" in os.environ, max_examples=USUAL)
settings.register_profile("quick", settings.get_profile("suite"), max_examples=QUICK)  # for scripts/test-quick
settings.load_profile("suite")

# A JVM of a test lives for seconds, too briefly for its best compiler to pay off, and for a collector that works beside
# the program. Without that compiler there is room for 48 MB of code, and a thread that empties it all the time.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m"
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA)
# Half of the rest is loading classes.
os.environ.update(shared_classes.environment())

# A shell that starts the suite in the background has some signals ignored, and every program of a test would inherit that.
for number, action in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", metavar="SEED", type=int, help="run files, and the tests of each, in this random order"
    )
    parser.addoption("--skips", metavar="PART", help="in CI, compare what is skipped with this part of tests/skips.txt")


def pytest_configure(config: pytest.Config) -> None:
    # Two pytest runs that end at the same time remove the same old folders.
    config.addinivalue_line("filterwarnings", "ignore:.rm_rf. error removing:pytest.PytestWarning")
    if not hasattr(config, "workerinput"):  # xdist's workers report to the process that has started them
        config.pluginmanager.register(SkipReport(config.getoption("skips")))


@pytest.fixture
def real_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start our programs by `python -m`, for tests of what happens then; otherwise they are forked (forked.py)."""
    monkeypatch.setattr(forked, "is_off", True)


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Restore the log's settings after a test that calls what assumes that the process is its own."""
    before = [(it.handlers[:], it.level, it.propagate) for it in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with what it starts, if `-m` asks for it. Finding out takes half a second, while all workers wait."""
    for item in items if config.getoption("markexpr") else ():
        for level in levels(item):
            item.add_marker(level)
    if (seed := config.getoption("--shuffle")) is not None:
        items[:] = shuffled(items, seed)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have collections of garbage look only at what tests make, not at a million objects that pytest keeps of them.

    While these are made there is no garbage either, and looking for it takes a fifth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Unusable.from_parent(parent, path=module_path) if missing(*needed_by(module_path)) else None


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    hangs.begin_limit(item.config.stash.get(fault_handler_stderr_fd_key, STDERR))
    try:
        return (yield)
    finally:
        hangs.lift_limit()


def pytest_enter_pdb() -> None:
    hangs.lift_limit()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[blocked] = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    item.stash[log_levels] = [logger.level for logger in loggers]
    for mark in item.iter_markers("needs"):
        need(*mark.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test that leaves a signal blocked or another log level: later tests would not get it, or log far more.

    A fixture would do as well, and take a quarter of the time of a short test.
    """
    yield
    levels_before = item.stash[log_levels]
    if (levels_after := [logger.level for logger in loggers]) != levels_before:
        for logger, level in zip(loggers, levels_before, strict=True):
            logger.setLevel(level)
    before = item.stash[blocked]
    assert signal.pthread_sigmask(signal.SIG_SETMASK, before) == before
    assert levels_after == levels_before, f"another level of {[logger.name for logger in loggers]}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    has_its_order = config.getvalue("dist") == "loadfile" and config.getoption("--shuffle", None) is None
    return FromBothEnds(config, log) if has_its_order else None


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape half characters in what a test has logged, as they cannot be sent to another process."""
    return _spelled_out((yield))


def _spelled_out(found: Any) -> Any:
    if isinstance(found, str):
        return found if found.isascii() else found.encode("utf-8", "backslashreplace").decode()
    if isinstance(found, dict):
        return {_spelled_out(key): _spelled_out(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return type(found)(map(_spelled_out, found))
    return found
