"""The process of a daemon, seen from outside: a real one, which only waits for a signal."""

from __future__ import annotations

import gc
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from nsqcommon.daemon import GC_THRESHOLDS, raise_file_limit
from nsqcommon.version import suite_version

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 100  # seconds that any of these may take on a busy machine

DAEMON = """
import gc, logging, os, resource, signal, sys, weakref
from dataclasses import dataclass

import trio

from nsqcommon import daemon
from nsqcommon.daemon import run_daemon, wait_for_signal
from nsqcommon.net import ListenError
from nsqcommon.options import BaseOptions, option
from nsqcommon.startup import TakenOver

log = logging.getLogger("nsqd.test")
daemon.COLLECT_INTERVAL = 0.05
daemon.OLD_ROUNDS = 3

@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BaseOptions):
    log_prefix: str = option("[custom] ", "")
    trouble: str = option("", "")


class Cycle:
    def __init__(self):
        self.itself = self


async def leave_garbage(*, old):
    collected = trio.Event()
    cycle = Cycle()
    weakref.finalize(cycle, collected.set)
    if old:
        gc.collect()
    del cycle
    with trio.fail_after(10):
        await collected.wait()
    log.info("collected")


async def run(options):
    if options.trouble == "signal first":
        os.kill(os.getpid(), 15)
    if options.trouble == "listen":
        async with trio.open_nursery():
            raise ListenError("listen (a:1) failed - because")
    if options.trouble == "taken over":
        raise TakenOver("orders: the name was taken over by process 7 on b")
    if options.trouble == "waits twice":
        with trio.move_on_after(0.1):
            await wait_for_signal()
        os.kill(os.getpid(), 15)
        log.info("pending %s", signal.SIGTERM in signal.sigpending())
    if options.trouble == "bug":
        raise RuntimeError("broken")
    if options.trouble.endswith("garbage"):
        await leave_garbage(old=options.trouble.startswith("old"))
        return
    log.info("files %d", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    number = await wait_for_signal()
    log.info("stopping after %s", number.name)
    await trio.sleep(0.2)
    log.info("bye")


sys.exit(run_daemon("nsqd", Options, run))
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def start_one(*argv: str, prepare: Callable[[], object] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, *argv],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=prepare,
        )
        running.append(process)
        return process

    yield start_one
    for process in running:
        process.kill()
        process.communicate()


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def wait_until_up(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_gracefully(start: Start, number: signal.Signals) -> None:
    process = start()
    wait_until_up(process)
    process.send_signal(number)
    status, _, err = outcome(process)
    assert status == 0
    assert err.endswith("INFO: bye\n")
    assert f"stopping after {number.name}" in err


def test_more_signals_do_not_cut_the_end_short(start: Start) -> None:
    process = start()
    wait_until_up(process)
    process.send_signal(signal.SIGTERM)
    assert "stopping" in wait_until_up(process)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
    status, _, err = outcome(process)
    assert status == 0
    assert err.endswith("INFO: bye\n")


def test_a_signal_during_the_start_is_heeded_once_it_is_up(start: Start) -> None:
    status, _, err = outcome(start("--trouble=signal first"))
    assert status == 0
    assert err.endswith("INFO: bye\n")


def test_a_wait_that_is_cancelled_leaves_signals_to_the_next_one(start: Start) -> None:
    status, _, err = outcome(start("--trouble=waits twice"))
    assert status == 0
    assert "pending True" in err
    assert "stopping after SIGTERM" in err


@pytest.mark.parametrize("age", ["young", "old"])
def test_garbage_of_a_quiet_daemon_is_collected(start: Start, age: str) -> None:
    status, _, err = outcome(start(f"--trouble={age} garbage"))
    assert status == 0
    assert err.endswith("INFO: collected\n")


@pytest.fixture
def tuned() -> Iterator[None]:
    """Have this process collect garbage as a daemon does."""
    before = gc.get_threshold()
    gc.collect(1)
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*before)


# In a process of its own, because other threads of a worker free older objects meanwhile, and as many young ones go uncounted.
_LOOKS: Final = """
import gc, sys

gc.collect()
gc.freeze()
gc.set_threshold(*map(int, sys.argv[1:]))
looked_at = []

def note(phase, info):
    if phase == "start":
        looked_at.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

gc.callbacks.append(note)
kept = [[] for _ in range(50_000)]
gc.callbacks.remove(note)
print(*looked_at)
"""


def test_a_collection_looks_at_5000_objects_at_most() -> None:
    command = [sys.executable, "-I", "-S", "-c", _LOOKS, *map(str, GC_THRESHOLDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    looked_at = [int(it) for it in done.stdout.split()]
    assert len(looked_at) >= 50_000 // 5000
    assert max(looked_at) < 5000 + 250  # objects that are used again are not counted


@pytest.mark.usefixtures("tuned")
def test_cycles_that_nobody_refers_to_do_not_pile_up() -> None:
    class Link:
        alive = 0

        def __init__(self) -> None:
            self.itself = self
            Link.alive += 1

        def __del__(self) -> None:
            Link.alive -= 1

    for _ in range(20_000):
        Link()
    assert 0 < Link.alive <= 5000


def test_nohup_is_respected(start: Start) -> None:
    process = start(prepare=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_until_up(process)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    status, _, err = outcome(process)
    assert status == 0
    assert "stopping after SIGTERM" in err


def test_sigquit_tells_where_it_is_and_ends_at_once(start: Start) -> None:
    process = start()
    wait_until_up(process)
    process.send_signal(signal.SIGQUIT)
    status, _, err = outcome(process)
    assert status == 2
    assert "most recent call first" in err
    assert "bye" not in err


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_ps_and_pgrep_show_the_name_of_the_daemon_and_not_pythons(start: Start) -> None:
    process = start()
    wait_until_up(process)
    assert Path(f"/proc/{process.pid}/comm").read_text() == "nsqd\n"


def test_help_goes_to_stderr(start: Start) -> None:
    status, out, err = outcome(start("--help"))
    assert (status, out) == (0, "")
    assert err.startswith("Usage of nsqd:\n")


def test_the_version_goes_to_stdout(start: Start) -> None:
    status, out, err = outcome(start("-version"))
    assert (status, err) == (0, "")
    version = ".".join(map(str, sys.version_info[:3]))
    assert out == f"nsqd v1.3.0 (built w/python{version}, nsq-suite {suite_version()})\n"


def test_a_wrong_flag_ends_with_one_line_and_status_2(start: Start) -> None:
    assert outcome(start("--nope")) == (2, "", "nsqd: flag provided but not defined: -nope; see nsqd --help\n")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config=/nowhere", "failed to load config file /nowhere - no such file or directory"),
        ("--trouble=listen", "failed to instantiate nsqd - listen (a:1) failed - because"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(start: Start, flag: str, message: str) -> None:
    status, out, err = outcome(start(flag))
    assert (status, out) == (1, "")
    assert err.endswith(f" FATAL: {message}\n")
    assert err.count("\n") == 1


def test_a_daemon_that_another_one_replaces_must_not_be_started_again(start: Start) -> None:
    status, _, err = outcome(start("--trouble=taken over"))
    assert status == 3
    assert err.endswith(" FATAL: nsqd stops - orders: the name was taken over by process 7 on b\n")
    assert err.count("\n") == 1


def test_a_bug_ends_it_with_a_traceback(start: Start) -> None:
    status, _, err = outcome(start("--trouble=bug"))
    assert status == 1
    assert " FATAL: nsqd failed\nTraceback" in err
    assert err.endswith("RuntimeError: broken\n")


def test_it_may_open_as_many_files_as_the_system_lets_it(start: Start) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    process = start(prepare=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)))
    line = wait_until_up(process)
    assert line.startswith("[custom] ")
    assert line.endswith(f"INFO: files {hard}\n")


@pytest.mark.parametrize(("most", "limit"), [(10_240, 10_240), (100, 64)])
def test_it_may_open_many_files_where_the_highest_limit_is_not_allowed(
    most: int, limit: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = (64, 1 << 62)  # macOS: "unlimited"

    def setrlimit(_: int, wanted: tuple[int, int]) -> None:
        nonlocal limits
        if wanted[0] > most:
            raise ValueError("current limit exceeds maximum limit")
        limits = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    raise_file_limit()
    assert limits == (limit, 1 << 62)
    assert ("limit of open files stays at 64" in caplog.text) == (limit == 64)
