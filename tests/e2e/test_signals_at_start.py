"""Programs end properly whenever a signal comes during their start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from nsqtools.outbox_tables import open_outbox
from tests.e2e import signalled
from tests.nsqtools.whole.test_help import PROJECT
from tests.support import forked
from tests.support.process import PYTHON, PYTHONPATH, Nsqd, needs_module
from tests.support.tools import LIMIT, address

# Counts of audit events, and what comes then. At the first a program is a process that has imported nothing. Later it is
# forked from one that has imported what is not ours, so it has started after 650 (nsqlookupd) to 4,700 (nsqadmin) events,
# of which it had more than 5,000. A tool that ends by itself may have done so after 1,600.
MOMENTS: Final = {
    0: signal.SIGTERM,
    30: signal.SIGINT,
    200: signal.SIGTERM,
    400: signal.SIGINT,
    700: signal.SIGTERM,
    1000: signal.SIGINT,
}
# A program that imports holds its signals, so of each kind of moment one is enough: nsqd and nsqadmin, which import for
# long, get a signal at three. All tools of nsqtools share the lines that hold signals, so one of them has all moments, and
# each of the others one of the first four, in turn, and the last two. nsqlookupd and nsqpipe have all, too.
TOOLS: Final = [it for it, target in PROJECT["scripts"].items() if target.startswith("nsqtools.")]
OF_LONG_STARTS: Final = (0, 400, 1000)
SHARED_BY_TOOLS: Final = tuple(MOMENTS)[:4]
OF_EACH_TOOL: Final = tuple(MOMENTS)[4:]
ENDS_BY_ITSELF: Final = ("nsq_dead", "nsq_deferred", "nsqpipe")  # a signal after its end is for the interpreter
HAS_STARTED: Final = 2.0  # seconds, after which a program that has not come that far gets its signal from outside
STARTED_BY_PEOPLE: Final = [it for it in PROJECT["scripts"].items() if it[0] != "nsqpipe-worker"]
EXTRAS: Final = {"nsqadmin": "starlette", "nsqpipe": "pyspark"}
INCOMPLETE: Final = 3  # exit status of nsq_replay when it was stopped before it had replayed everything


@dataclass(frozen=True, slots=True)
class World:
    """What the programs need: a broker, a topic with a few messages, an address that never answers."""

    nsqd: Nsqd
    topic: str
    silent: str
    folder: Path

    def arguments(self, program: str) -> tuple[str, ...]:
        tcp, http = address(self.nsqd.tcp), address(self.nsqd.http_address)
        anywhere = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
        consuming = (f"--topic={self.topic}", f"--nsqd-tcp-address={tcp}")
        match program:
            case "nsqd":
                return (*anywhere, f"--data-path={self.folder}")
            case "nsqlookupd":
                return anywhere
            case "nsqadmin":
                return ("--http-address=127.0.0.1:0", f"--nsqd-http-address={http}")
            case "nsqpipe":
                return ("submit", "--master=local", "--dry-run", "--", "land")
            case "nsq_tail":
                return (*consuming, "--channel=c")
            case "nsq_to_file":
                return (*consuming, "--channel=c", f"--output-dir={self.folder}")
            case "nsq_to_http":
                return (*consuming, "--channel=c", f"--post=http://{self.silent}/")
            case "nsq_to_nsq":
                return (
                    *consuming,
                    "--channel=c",
                    "--destination-topic=copies",
                    f"--destination-nsqd-tcp-address={tcp}",
                )
            case "to_nsq":
                return (f"--topic={self.topic}", f"--nsqd-tcp-address={tcp}")
            case "outbox_to_nsq":
                database = f"sqlite:///{self.folder}/app.db"
                outbox = open_outbox(database, "outbox", make=True)
                outbox.create()
                outbox.close()
                return (f"--database={database}", f"--nsqd-tcp-address={tcp}")
            case "nsq_dead":
                return ("list", f"--topic={self.topic}", "--channel=c", f"--nsqd-http-address={http}")
            case "nsq_deferred":
                return ("list", f"--topic={self.topic}", f"--nsqd-http-address={http}")
            case "nsq_stat":
                return (f"--topic={self.topic}", "--channel=c", f"--nsqd-http-address={http}")
            case "nsq_bench":
                return (f"--topic={self.topic}", f"--nsqd-tcp-address={tcp}", "--runfor=1h", "--rate=10", "--quiet")
            case "nsq_replay":
                places = (f"--nsqd-http-address={http}", f"--destination-nsqd-tcp-address={tcp}")
                return (f"--topic={self.topic}", "--destination-topic=copies", "--rate=1", *places)
        raise AssertionError(f"nobody has said how {program} is started here")


@pytest.fixture
def world(nsqd: Nsqd, topic: str, tmp_path: Path) -> Iterator[World]:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    for _ in range(5):
        nsqd.connect().publish(topic, b"something to do")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield World(nsqd, topic, address(silent.getsockname()), tmp_path)


def ended(world: World, program: str, target: str, moment: int, number: signal.Signals) -> tuple[int, str]:
    """Start the program, send it the signal, and return its exit status and its log."""
    stdin, nothing = os.pipe()
    is_forked = moment > 0 and sys.executable == PYTHON
    start: Any = forked.Popen if is_forked else subprocess.Popen
    starter = ("-m", "tests.e2e.signalled") if is_forked else (signalled.__file__,)
    process: subprocess.Popen[bytes] = start(
        [PYTHON, "-P", *starter, str(int(number)), str(moment), target, program, *world.arguments(program)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with process, os.fdopen(stdin), os.fdopen(nothing):
        try:
            try:
                log, _ = process.communicate(timeout=LIMIT if program in ENDS_BY_ITSELF else HAS_STARTED)
            except subprocess.TimeoutExpired as slow:
                if signalled.SENT not in (slow.output or b""):
                    process.send_signal(number)
                log, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    return process.returncode, log.decode()


def moments_of(program: str) -> Sequence[int]:
    if program in ("nsqd", "nsqadmin"):
        return OF_LONG_STARTS
    place = TOOLS.index(program) if program in TOOLS else 0
    return (SHARED_BY_TOOLS[place % len(SHARED_BY_TOOLS)], *OF_EACH_TOOL) if place else tuple(MOMENTS)


@pytest.mark.parametrize(("program", "target"), STARTED_BY_PEOPLE, ids=[program for program, _ in STARTED_BY_PEOPLE])
def test_a_program_ends_well(program: str, target: str, world: World) -> None:
    if program in EXTRAS:
        needs_module(EXTRAS[program])
    good = (0, INCOMPLETE) if program == "nsq_replay" else (0,)
    for moment in moments_of(program):
        number = MOMENTS[moment]
        status, log = ended(world, program, target, moment, number)
        assert status in good, f"{number.name} at {moment}: exit status {status}\n{log}"
        assert "Traceback" not in log
