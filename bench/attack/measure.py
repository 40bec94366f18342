"""One load on a fresh daemon: the honest client's times, and the daemon's peaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from bench.attack.cases import CASES, Case, Victim
from bench.attack.target import Target
from bench.brokers import Broker, running_daemon, running_nsqd
from bench.builds import Build
from bench.certificate import Certificate
from bench.ports import take_port
from bench.processes import resident_megabytes
from bench.settings import Settings
from bench.work import HOST, SLACK, Failed, Work, started
from scripts.command_line import option

_AFTERWARDS: Final = 1.0  # seconds that the honest client goes on after the attacker
_LOOK: Final = 0.2  # seconds between two counts of descriptors


@dataclass(kw_only=True)
class AttackSettings(Settings):
    only: str = option("", f"some of: {', '.join(CASES)}", word="ROW,...")
    seconds: float = option(8.0, "length of each load")


@dataclass(frozen=True, slots=True)
class Figures:
    p99: float  # ms, the worse of messages and requests
    peak: float  # MB
    handshakes: float  # ms, the same percentile; 0: none were asked for
    unanswered: int  # of any kind
    told: str


@dataclass(frozen=True, slots=True)
class _Running:
    """A daemon, how it is attacked, and the addresses for the honest client."""

    pid: int
    target: Target
    probe: dict[str, Any]


def measured(name: str, settings: AttackSettings, work: Work, certificate: Certificate) -> Figures:
    case = CASES[name]
    with work.new_folder("attack") as folder, _victim(case, settings, folder, certificate) as running:
        with _watching(running.pid) as watch, _probe(running, folder) as probe:
            waited = _waited_for_core(running.pid)
            done = _attack(name, running.target, settings.seconds)
            time.sleep(_AFTERWARDS)
            probe.terminate()
            waited = _waited_for_core(running.pid) - waited
            out, _ = probe.communicate(timeout=SLACK)
        peak = watch.peak
        seen = json.loads(out.splitlines()[-1])
    times = {kind: sorted(one["times"]) for kind, one in seen.items()}
    told = [f"{kind} {_spread(them)}" for kind, them in times.items()]
    told += [f"{one['failed']} {kind}s failed" for kind, one in seen.items() if one["failed"]]
    told += [f"{watch.descriptors:,} descriptors", f"{waited:.1f} s waited for a core", done]
    return Figures(
        p99=max(_p99(them) for kind, them in times.items() if kind != "handshake"),
        peak=peak,
        handshakes=_p99(times.get("handshake", ())),
        unanswered=sum(one["failed"] for one in seen.values()),
        told=", ".join(told),
    )


def _spread(times: Sequence[float]) -> str:
    return f"p50 {times[len(times) // 2]:.1f} p99 {_p99(times):.0f} max {times[-1]:.0f} ms"


def _p99(times: Sequence[float]) -> float:
    return quantiles(times, n=100)[98] if len(times) > 1 else max(times, default=0.0)


def _attack(name: str, target: Target, seconds: float) -> str:
    command = [sys.executable, "-m", "bench.attack.attacker", name, str(seconds), json.dumps(asdict(target))]
    with started(command, stdout=subprocess.PIPE) as process:
        try:
            out, _ = process.communicate(timeout=seconds + SLACK)
        except subprocess.TimeoutExpired:
            return "the attacker did not end"
    return out.decode().strip() if process.returncode == 0 else f"the attacker ended with status {process.returncode}"


@contextmanager
def _probe(running: _Running, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bench.attack.probe", json.dumps(running.probe)]
    with started(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise Failed("the honest client did not come to work")
        yield process


# The daemons


@contextmanager
def _victim(case: Case, settings: AttackSettings, folder: Path, certificate: Certificate) -> Iterator[_Running]:
    with ExitStack() as stack:
        match case.victim:
            case Victim.NSQD | Victim.NSQD_AUTH:
                yield stack.enter_context(_nsqd(case, settings, folder, certificate))
            case Victim.NSQLOOKUPD:
                yield stack.enter_context(_nsqlookupd(settings.build, folder))
            case Victim.NSQADMIN:
                yield stack.enter_context(_nsqadmin(settings.build, folder))


@contextmanager
def _nsqd(case: Case, settings: AttackSettings, folder: Path, certificate: Certificate) -> Iterator[_Running]:
    with ExitStack() as stack:
        flags, secret, https = ["--log-level=info", *settings.flag], "", 0  # the default, as lines take time, too
        if case.wants_tls:
            https = take_port()
            flags += [f"--tls-cert={certificate.certificate}", f"--tls-key={certificate.key}"]
            flags.append(f"--https-address={HOST}:{https}")
        if case.victim is Victim.NSQD_AUTH:
            command = [sys.executable, "-m", "bench.attack.servers", "auth"]
            server = stack.enter_context(started(command, stdout=subprocess.PIPE))
            assert server.stdout is not None
            flags.append(f"--auth-http-address={HOST}:{int(server.stdout.readline())}")
            secret = "honest"
        data = folder / "data"
        data.mkdir()
        broker, process = stack.enter_context(running_nsqd(data, settings.build, flags))
        assert broker.http_port is not None
        yield _Running(
            process.pid,
            Target(tcp=broker.tcp_port, http=broker.http_port, https=https),
            {"tcp": broker.tcp_port, "secret": secret, "http": broker.http_port, "path": "/ping", "https": https},
        )


@contextmanager
def _nsqlookupd(build: Build, folder: Path) -> Iterator[_Running]:
    tcp, http_port = take_port(), take_port()
    command = [*build.python(), "-m", "nsqlookupd", f"--tcp-address={HOST}:{tcp}", f"--http-address={HOST}:{http_port}"]
    with running_daemon(command, Broker(tcp, http_port), folder / "nsqlookupd.log") as pid:
        asked = {"tcp": 0, "secret": "", "http": http_port, "path": "/ping", "https": 0}
        yield _Running(pid, Target(tcp=tcp, http=http_port), asked)


@contextmanager
def _nsqadmin(build: Build, folder: Path) -> Iterator[_Running]:
    port = take_port()
    with _nsqlookupd(build, folder) as lookupd:
        command = [sys.executable, "-m", "nsqadmin", f"--http-address={HOST}:{port}"]
        command.append(f"--lookupd-http-address={HOST}:{lookupd.target.http}")
        with running_daemon(command, Broker(port, port), folder / "nsqadmin.log") as pid:
            yield _Running(pid, lookupd.target, {"tcp": 0, "secret": "", "http": port, "path": "/ping", "https": 0})


# Memory and descriptors


class _Watch:
    """The most memory and descriptors that a process has had; it may have died meanwhile."""

    def __init__(self, pid: int) -> None:
        self.peak = 0.0
        self.descriptors = 0
        self._pid = pid

    def look(self) -> None:
        with suppress(OSError, Failed):
            self.descriptors = max(self.descriptors, len(os.listdir(f"/proc/{self._pid}/fd")))
            self.peak = resident_megabytes(self._pid, "VmHWM")


@contextmanager
def _watching(pid: int) -> Iterator[_Watch]:
    watch = _Watch(pid)
    ends = threading.Event()

    def run() -> None:
        while not ends.wait(_LOOK):
            watch.look()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield watch
    finally:
        ends.set()
        thread.join()
        watch.look()


def _waited_for_core(pid: int) -> float:
    """Return the seconds that the daemon's main thread was ready to run and had no core."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except OSError:
        return 0.0
