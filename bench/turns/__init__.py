"""Each route and each command, on topics full of messages in every state: how long is the longest turn?

    python -m bench turns --messages 1000000
    python -m bench turns --messages 20000 --topics 500 --only "POST /message"

`cases.py` says what is asked, `filling.py` fills topics for it, and `measured_nsqd.py` is the nsqd that is asked. Besides the
requests it measures what filling the topics, a changed policy file and consumers that leave cost.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.brokers import Broker, running_nsqd
from bench.builds import Build
from bench.report import Benchmark, Report, Row, at_most, print_table, write_result
from bench.settings import Settings
from bench.states import read
from bench.turns.cases import CASES, SAID, WIDE, Case, Said, missing
from bench.turns.filling import CHANNEL, OF_CHANNELS, STATES, Filled, Filling, client
from bench.turns.measured_nsqd import LAYOUT
from bench.work import Failed, Work, say
from nsqcommon.wire import commands
from nsqd.client.work_budget import COST_OF_LOG, STRETCH
from scripts.command_line import option

LONGEST: Final = {Build.COMPILED: 20.0, Build.PURE: 50.0}  # ms
SHOWN: Final = 10
_PATTERNS: Final = 2_000
_QUIET: Final = 0.1  # seconds in which nsqd has used no more than
_IDLE: Final = 0.003  # seconds of processor time
_PATIENCE: Final = 300.0  # seconds for what a request has begun
_FRAME: Final = 35  # bytes of a message of one byte
_READY: Final = 2_500
_CROWD: Final = 800  # connections
_TOPICS_OF_STRETCH: Final = STRETCH // COST_OF_LOG
_OK: Final = 10  # bytes of the answer


@dataclass(kw_only=True)
class TurnsSettings(Settings):
    messages: int = option(1_000_000, "in each state")
    topics: int = option(10_000, "besides these")
    channels: int = option(1_000, "of one topic")
    only: str = option("", "what begins so, as a regular expression", word="ROUTE")


@dataclass(frozen=True)
class Figure:
    longest: float  # ms of processor time
    collecting: float  # ms of it in the garbage collector
    where: str


class Meter:
    """What `measured_nsqd.py` has measured since it was last asked."""

    def __init__(self, file: Path, broker: Broker) -> None:
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), LAYOUT.size)
        self._broker = broker

    def reset(self) -> None:
        LAYOUT.pack_into(self._shared, 0, 0, 0.0, 0.0, b"")

    def take(self) -> Figure:
        """Wait until nsqd has nothing left to do, and return its longest turn since `reset`."""
        self._wait_until_idle()
        _, longest, collecting, where = LAYOUT.unpack_from(self._shared)
        return Figure(1000 * longest, 1000 * collecting, where.rstrip(b"\0").decode())

    def _wait_until_idle(self) -> None:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            before = self._broker.processor_seconds()
            time.sleep(_QUIET)
            if self._broker.processor_seconds() - before < _IDLE:
                return
        raise Failed(f"nsqd is still at work after {_PATIENCE:.0f} seconds")


class Walk:
    def __init__(self, broker: Broker, meter: Meter, filling: Filling, build: Build, only: str) -> None:
        self._broker = broker
        self._meter = meter
        self._filling = filling
        self._limit = at_most(LONGEST[build])
        self._only = only
        self.rows: list[Row] = []

    def wants(self, name: str) -> bool:
        return re.match(self._only, name) is not None

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Make a row of the longest turn in the block, and of what follows from it."""
        self._meter.take()
        self._meter.reset()
        yield
        figure = self._meter.take()
        note = f"in {figure.where}" if figure.where else ""
        if figure.collecting > 1:
            note = f"garbage collector {figure.collecting:.0f} ms; {note}"
        self.rows.append(Row(name, "ms", (figure.longest,), self._limit, note=note))
        say(f"{figure.longest:9.1f} ms  {name}  {note}")

    # Requests

    def ask(self, case: Case, state: str) -> None:
        filled = self._filling.state(state) if state else Filled("")
        path, body = self._request(case, filled)
        headers = {"Accept": case.accept, "Content-Type": "application/x-www-form-urlencoded"}
        method = case.route.split()[0]
        with self.measured(case.name_in(state)):
            if case.accept == "text/event-stream":
                self._broker.send_only(method, path, headers)
            else:
                self._broker.send(method, path, body, headers)
        if case.spoils:
            self._filling.forget(state)

    def _request(self, case: Case, filled: Filled) -> tuple[str, bytes]:
        known = {"topic": filled.topic, "ids": "&".join(f"id={it}" for it in filled.ids[:100]) or "sequence=7"}
        if "{kick}" in case.query:
            at = f"topic={filled.topic}&channel={CHANNEL}"
            known["kick"] = str(json.loads(self._broker.get(f"/channel/buried?{at}&summary=true"))["kick"])
        body = case.body
        if b"LOG" in body:
            body = body.replace(b"LOG", self._broker.log(filled.topic)["log"].encode())
        if body == b"{ids}":
            body = "\n".join(self._leased(filled)).encode()
        return f"{case.path or case.route.split()[1]}?{case.query.format(**known)}", body

    def _leased(self, filled: Filled) -> list[str]:
        """Return the ids of messages that are in flight to us, over HTTP."""
        other = self._filling.state("waiting") if filled.topic.startswith("in_flight") else filled
        listed = self._broker.send("POST", f"/sub?topic={other.topic}&channel={CHANNEL}&max=1000", b"")[1]
        filled.topic = other.topic
        return [json.loads(line)["id"] for line in listed.splitlines()]

    def say(self, said: Said, state: str) -> None:
        filled = self._filling.state(state)
        with client(self._broker) as connection:
            if said.each:
                connection.sendall(said.said(filled.topic))
                frames = read(connection, 10 + _FRAME * _READY)[10:]
                ids = [frames[at + 18 : at + 34] for at in range(0, len(frames), _FRAME)]
                with self.measured(said.name_in(state)):
                    connection.sendall(b"".join(map(said.answer, ids)))
            else:
                with self.measured(said.name_in(state)):
                    connection.sendall(said.said(filled.topic))

    # What is no request

    def change_policy(self, policy: Path, topics: Sequence[str]) -> None:
        """Have the policy file say something else, also about topics that are full beyond the new bounds."""
        for overflow in ("drop-oldest", "bury"):
            bounded = [
                f'[[policy]]\ntopic = "{topic}"\nchannel = "*"\nmax_messages = 1\noverflow = "{overflow}"\n'
                for topic in topics
            ]
            with self.measured(f"policy file changed, bounds that {overflow}"):
                write_policy(policy, more="".join(bounded))
                self._wait_for_policy(policy)

    def _wait_for_policy(self, policy: Path) -> None:
        read_at = time.time_ns()
        while True:
            told = json.loads(self._broker.get("/config/policy"))
            if told["error"]:
                raise Failed(told["error"])
            if told["read_at"] > read_at and not told["topics_left"]:
                return
            time.sleep(0.05)

    def leave(self) -> None:
        """Have all consumers leave that hold messages."""
        filled = self._filling.state("in_flight")
        with self.measured("consumers leave (in_flight)"):
            filled.held.close()
        self._filling.forget("in_flight")

    def crowd(self, connections: int, topics: int) -> None:
        """Have many connections publish at once, each to so many topics of its own."""
        with ExitStack() as held:
            crowd = [held.enter_context(client(self._broker)) for _ in range(connections)]
            with self.measured(f"{connections} connections publish at once, to topics of their own: {topics} each"):
                with _stopped(self._broker):  # so that it finds all of them ready
                    for number, connection in enumerate(crowd):
                        names = [f"t.{number * topics + it}" for it in range(topics)]
                        connection.sendall(b"".join(commands.pub(name, b"x") for name in names))
                for connection in crowd:
                    read(connection, _OK * topics)


@contextmanager
def _stopped(broker: Broker) -> Iterator[None]:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def write_policy(file: Path, more: str = "") -> None:
    """Write a policy that knows each topic by a pattern that has to be tried, and demands nothing that drops messages.

    The topic whose messages have groups lets each of these have one in flight.
    """
    entries = [
        f'[[policy]]\ntopic = "*.{number}.t"\nmax_messages = 10000000\nretention_time = "7d"\n'
        for number in range(_PATTERNS)
    ]
    new = file.with_suffix(".new")
    new.write_text(
        more + '[[policy]]\ntopic = "grouped_*"\nchannel = "*"\nmax_in_flight_per_group = 1\n' + "".join(entries)
    )
    new.replace(file)


def run(settings: TurnsSettings, work: Work) -> list[Row]:
    with work.new_folder("turns") as folder:
        meter, routes, policy = (folder.with_suffix(suffix) for suffix in (".meter", ".routes", ".toml"))
        meter.write_bytes(bytes(LAYOUT.size))
        write_policy(policy)
        program = [str(Path(__file__).with_name("measured_nsqd.py")), str(meter), str(routes)]
        flags = [f"--policy-file={policy}", "--msg-timeout=15m", "--max-heartbeat-interval=2h", *settings.flag]
        with running_nsqd(folder, settings.build, flags, program=program) as (broker, _):
            if unknown := missing(json.loads(routes.read_text())):
                raise Failed(f"the walk does not fit the routes: {', '.join(sorted(unknown))}")
            make_topics(broker, settings.topics, settings.channels)
            filling = Filling(broker, settings.messages)
            walk = Walk(broker, Meter(meter, broker), filling, settings.build, settings.only)
            take_walk(walk, filling, policy, settings.topics)
    return walk.rows


def take_walk(walk: Walk, filling: Filling, policy: Path, topics_made: int) -> None:
    for state in STATES:
        if walk.wants(f"fill {state}"):
            with walk.measured(f"fill {state}"):
                filling.state(state)
    for said in SAID:
        if walk.wants(said.route):
            for state in said.states:
                walk.say(said, state)
    for case in CASES:
        if walk.wants(case.route):
            for state in case.states:
                walk.ask(case, state)
    if walk.wants("consumers leave"):
        walk.leave()
    if walk.wants("connections publish"):
        for topics in (1, _TOPICS_OF_STRETCH):
            walk.crowd(min(_CROWD, topics_made // topics), topics)
    if walk.wants("policy"):
        walk.change_policy(policy, [filling.state(state).topic for state in OF_CHANNELS])


def make_topics(broker: Broker, topics: int, channels: int) -> None:
    """Make topics with a channel each, and one topic with many channels."""
    say(f"making {topics} topics, and {channels} channels of one")
    names = [f"t.{number}" for number in range(topics)]
    with client(broker) as connection:
        for start in range(0, topics, _READY):
            some = names[start : start + _READY]
            connection.sendall(b"".join(commands.pub(name, b"x") for name in some))
            read(connection, 10 * len(some))
    broker.post_all([f"/channel/create?topic={name}&channel={CHANNEL}" for name in names])
    broker.post_all(
        [f"/topic/create?topic={WIDE}", *(f"/channel/create?topic={WIDE}&channel=c{n}" for n in range(channels))]
    )


def publish(report: Report, settings: TurnsSettings) -> None:
    """Print the longest turns, and write all of them."""
    longest = sorted(report.rows, key=lambda row: -row.values[0])
    missed = [row for row in longest if row.is_met is False]
    print_table(
        Report(
            report.name,
            report.question,
            longest[: max(SHOWN, len(missed))],
            report.command,
            report.seconds,
            report.settings,
            report.core,
        )
    )
    print(f"{len(missed)} of {len(report.rows)} are longer than demanded")
    write_result(report, settings.results)


BENCHMARK: Final = Benchmark(
    "turns",
    "A million messages in each state: what is the longest turn of any request?",
    TurnsSettings,
    run,
    at_most=60,
    publish=publish,
)
