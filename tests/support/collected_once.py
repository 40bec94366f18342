"""Has pytest-xdist's workers forked from one process that has collected the tests, instead of collecting in each.

    controller --- starts ---> collector: imports and collects, and then forks a worker for each that asks
        '--- starts ---> small processes: each hands its streams to the collector, and waits for its worker

To xdist a small process is an interpreter that it has started (the `python=` of execnet), and its own protocol begins
only in the worker. What a worker reports of its collection is repeated from what the collector has seen. A worker that
crashes is replaced by another fork.

If the collector ends too early, which an error of pytest or of its settings may cause, each small process becomes the
interpreter that xdist wanted, and collects for itself. NSQ_REAL_STARTS=1 has all do so.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NoReturn

import pytest
from _pytest.main import wrap_session
from _pytest.tmpdir import TempPathFactory
from execnet import Channel, XSpec
from hypothesis import strategies as st
from xdist import remote
from xdist.plugin import _sys_path

from tests.support import collected_worker, forked, zygote

_ASKS: Final = Path(__file__).with_name("asking_worker.py")
# pytest comes first, as it wants to import all others.
_START: Final = """
import json, sys
from _pytest.config import _prepareconfig
descriptor, asked = int(sys.argv[1]), json.loads(sys.stdin.buffer.readline())
sys.argv[:], sys.path[:] = ["-c"], asked["path"]
config = _prepareconfig(asked["args"], None)
from tests.support import collected_once
collected_once.main(descriptor, asked["workers"], config)
"""
_PATIENCE: Final = 10.0  # seconds, as xdist has with its workers
# Python looks for garbage after 700 new objects. Tests make few cycles, and it took them a thirtieth of their time.
_SELDOM: Final = (20_000, 20, 50)
_WORTH_SAYING: Final = 0.05  # seconds: `--durations` names such fixtures
_collector: Final = pytest.StashKey[subprocess.Popen[bytes]]()
_channels: Final[SimpleQueue[Channel | None]] = SimpleQueue()  # in a worker: its only one, and None at the end
_has_ended: Final = threading.Event()
is_worker = False  # in the collector's forks this is true


# In the controller.


def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[XSpec]) -> None:
    here = [it for it in specs if it.popen and not (it.python or it.chdir or it.via)]
    if (
        sys.platform != "linux"
        or "NSQ_REAL_STARTS" in os.environ
        or len(here) < 2
        or config.getvalue("dist") == "loadgroup"
    ):
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # an address that is no file, and nobody else's
        listener.listen(len(here))
        asked = {"args": [*map(str, config.invocation_params.args)], "workers": len(specs), "path": _sys_path}
        config.stash[_collector] = subprocess.Popen(
            [sys.executable, "-c", _START, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,  # it ends when this is closed, also if we are killed
            stdout=subprocess.DEVNULL,  # as that of a worker
        )
        _tell(config.stash[_collector], asked)
        address = listener.getsockname().hex()
    config.pluginmanager.register(_Remote())
    for spec in here:
        spec.python = shlex.join([sys.executable, "-S", "-E", str(_ASKS), address])


def _tell(collector: subprocess.Popen[bytes], asked: dict[str, object]) -> None:
    """Send a line. As an argument, very many names of tests would be too long."""
    assert collector.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, so each worker will collect
        collector.stdin.write(json.dumps(asked).encode() + b"\n")
        collector.stdin.flush()


class _Remote:
    def pytest_xdist_getremotemodule(self) -> object:
        return collected_worker


def pytest_unconfigure(config: pytest.Config) -> None:
    if (process := config.stash.get(_collector, None)) is not None:
        try:
            process.communicate(timeout=_PATIENCE)  # its standard input ends, and so does it
        except subprocess.TimeoutExpired:  # it hangs in an import, say
            process.kill()
            process.wait()


# In the collector, and then in its forks.


class _Reports:
    """What a worker has to repeat. Warnings need not be in it, as pytest tells each new plugin of earlier ones."""

    def __init__(self) -> None:
        self.seen: list[pytest.CollectReport] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.seen.append(report)


class _Worker(remote.WorkerInteractor):  # type: ignore[misc]  # it has no types
    """xdist's worker, without the reports that nobody reads.

    It sends seven messages for each test, which cost both sides a millisecond and a half: three quarters of a test that
    does nothing. What says only that a test has begun, or that it was set up or torn down in no time and without a word,
    is kept back, and so are the marks of a test that has passed.
    """

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        if self.config.option.verbose > 0:  # then pytest prints it
            super().pytest_runtest_logstart(nodeid, location)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed:
            report.keywords = {}
        if not says_nothing(report):
            super().pytest_runtest_logreport(report)


def says_nothing(report: pytest.TestReport) -> bool:
    """Return whether nobody would miss a report: that of the call says that the test has passed."""
    is_long = report.duration >= _WORTH_SAYING
    return report.when != "call" and report.passed and not (is_long or report.sections)


def _serve_and_run(listener: socket.socket, config: pytest.Config, session: pytest.Session) -> int | pytest.ExitCode:
    """Collect, serve forks, and in each of these run the tests that xdist asks for."""
    reports = _Reports()
    config.pluginmanager.register(reports)
    config.hook.pytest_collection(session=session)
    config.pluginmanager.unregister(reports)
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for xdist, which then ends the workers, and us
    threads = threading.enumerate()
    assert len(threads) == 1, f"a module starts threads when it is imported, which no fork has: {threads}"
    st.text().validate()  # what Hypothesis needs to know of Unicode: in a fresh checkout it takes a second to find out
    gc.collect()
    gc.freeze()  # what was collected lives to the end, so no worker has to look at it again and again
    gc.set_threshold(*_SELDOM)
    forked.share()
    zygote.serve(listener)
    global is_worker
    is_worker = True
    threading.Thread(target=_speak).start()
    if (channel := _channels.get()) is None:
        os._exit(1)
    workerinput, _, options, _ = channel.receive()
    os.environ["PYTEST_XDIST_TESTRUNUID"] = workerinput["testrunuid"]
    os.environ["PYTEST_XDIST_WORKER"] = workerinput["workerid"]
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(workerinput["workercount"])
    config._parser.prog = os.path.basename(workerinput["mainargv"][0])
    config.option.basetemp = options.get("basetemp")
    config._tmp_path_factory = TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]
    config.workerinput = workerinput  # type: ignore[attr-defined]
    capture.start_global_capturing()
    worker = remote.interactor = _Worker(config, channel)
    worker.pytest_sessionstart(session)
    worker.pytest_collection()
    for report in reports.seen:
        worker.pytest_collectreport(report)
    worker.pytest_collection_finish(session)
    config.hook.pytest_runtestloop(session=session)
    if session.testsfailed:
        return pytest.ExitCode.TESTS_FAILED
    return pytest.ExitCode.OK if session.testscollected else pytest.ExitCode.NO_TESTS_COLLECTED


def _speak() -> None:
    """Be what execnet starts, in a thread, as the main one runs the tests."""
    try:
        exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    finally:
        _channels.put(None)  # xdist may have been killed before it asked for anything


def run(channel: Channel) -> None:
    """Have the main thread run the tests, and return when that has ended: then execnet closes the channel."""
    _channels.put(channel)
    _has_ended.wait()


def main(descriptor: int, workers: int, config: pytest.Config) -> NoReturn:
    remote.setup_config(config, None)
    config.workerinput = {"workerid": "collector", "workercount": workers}  # type: ignore[attr-defined]
    config.workeroutput = {}  # type: ignore[attr-defined]
    listener = socket.socket(fileno=descriptor)
    try:
        wrap_session(config, lambda config, session: _serve_and_run(listener, config, session))
    finally:
        _has_ended.set()
    zygote.end(0)
