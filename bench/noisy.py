"""One customer publishes a hundred times as much as 999 others together: how long do the others wait?

Three million of its jobs wait already, and it alone keeps all consumers busy. The others' messages are timed from their
publication to their delivery: without that customer, with it where the policy has `share = "group"`, and with it where
the policy says nothing.

A message that arrives has to wait for a free place, whatever the policy says. So that this takes little time, places are
many and jobs are short: 1,000 places and 100 ms free 10,000 places a second. A job takes half of its time to one and a
half, or else all places would become free at the same moment, ten times a second.

Without `share` the others come behind all that waits. A run doesn't wait for that: a message that hasn't arrived by the
end of the run counts with its age then, which is less than its wait.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from bench import noisy_chart
from bench.brokers import Broker, running_nsqd
from bench.processes import processor_seconds, wait_until
from bench.report import Benchmark, Report, Row, at_most, print_table, replace_file, write_result
from bench.runner import in_turns
from bench.settings import Settings
from bench.work import ROOT, SLACK, Failed, Load, Work, parsed, say
from bench.workloads import CHANNEL, SIZE, fill
from scripts.command_line import option

TOPIC: Final = "bench_noisy"
POLICY: Final = '[[policy]]\nchannel = "*"\nshare = "group"\n'
OTHERS: Final = 999
ALONE, SHARED, UNSHARED = noisy_chart.SIDES
TEXTS: Final = {ALONE: "without the large customer", SHARED: "with it", UNSHARED: "with it, without share"}
QUANTILES: Final = {"p50": 0.5, "p99": 0.99}
MOST: Final = at_most(2)  # the others' p99, compared with that without the large customer
_CONNECTIONS: Final = 10
_LIMIT: Final = 600.0  # seconds until all that waits is sorted
_REST: Final = 2.0  # seconds for the last messages to come
_STEP: Final = 100  # messages of the large customer in one publish


@dataclass(kw_only=True)
class NoisySettings(Settings):
    runs: int = option(3, "runs of each row")
    seconds: float = option(20.0, "length of one run")
    waiting: int = option(3_000_000, "messages of the large customer that wait already")
    rate: int = option(100, f"messages a second of the {OTHERS} others together")
    times: int = option(100, "so many times as much the large customer publishes")
    places: int = option(1000, "messages that consumers work on at a time")
    job: int = option(100, "how long they work on each", word="MILLISECONDS")
    draw: Path | None = option(None, "measure nothing; draw this into the documents", word="RESULT")


@dataclass
class Side:
    """The runs of a side."""

    waits: list[list[float]] = field(default_factory=list)  # milliseconds, ascending, of each run
    came: int = 0  # of all these, the messages that have arrived
    busy: list[float] = field(default_factory=list)  # nsqd's use of a core
    sorting: list[float] = field(default_factory=list)  # seconds until all that waited was sorted by groups

    def quantiles(self, share: float) -> tuple[float, ...]:
        return tuple(noisy_chart.quantile(waits, share) for waits in self.waits)

    @property
    def lacking(self) -> int:
        return sum(map(len, self.waits)) - self.came


class Rows(list[Row]):
    """The rows, and the waits that the picture shows."""

    def __init__(self, rows: Sequence[Row], sides: Mapping[str, Side]) -> None:
        super().__init__(rows)
        self._sides = sides

    def described(self) -> dict[str, object]:
        return {"waits": {name: noisy_chart.described(side.waits) for name, side in self._sides.items()}}


def run(settings: NoisySettings, work: Work) -> Rows:
    sides = {name: Side() for name in TEXTS}
    for number, name in in_turns([*TEXTS], settings.runs):
        _measure(sides[name], name, settings, work)
        latest = sides[name].waits[-1]
        shown = ", ".join(f"{it} {noisy_chart.quantile(latest, share):.2f} ms" for it, share in QUANTILES.items())
        say(f"run {number + 1}, {TEXTS[name]}: {shown}")
    rows = [_row(sides, name, it) for name in TEXTS for it in QUANTILES]
    text = f"until {settings.waiting:,} waiting messages are sorted by groups"
    return Rows([*rows, Row(text, "s", tuple(sides[SHARED].sorting))], sides)


def _row(sides: Mapping[str, Side], name: str, quantile: str) -> Row:
    side, share = sides[name], QUANTILES[quantile]
    others = () if name == ALONE else sides[ALONE].quantiles(share)
    note = f"nsqd uses {median(side.busy):.0%} of a core"
    if side.lacking:
        note += f"; {side.lacking:,} of {side.came + side.lacking:,} did not come"
    return Row(
        f"others' wait {quantile}, {TEXTS[name]}",
        "ms",
        side.quantiles(share),
        MOST if (name, quantile) == (SHARED, "p99") else None,
        TEXTS[ALONE] if others else "",
        others,
        note,
    )


def _measure(side: Side, name: str, settings: NoisySettings, work: Work) -> None:
    with work.new_folder("noisy") as folder, ExitStack() as stack:
        policy = folder.with_suffix(".toml")
        policy.write_text("" if name == UNSHARED else POLICY)
        flags = [f"--policy-file={policy}", *settings.flag]
        broker, _ = stack.enter_context(running_nsqd(folder, settings.build, flags))
        broker.make_channel(TOPIC, CHANNEL)
        if name != ALONE:
            fill(work, broker, TOPIC, settings.waiting, SIZE, 200, "groups=1")
        waits = folder.with_suffix(".waits")
        words = (TOPIC, CHANNEL, _CONNECTIONS, settings.places // _CONNECTIONS, _LIMIT + settings.seconds + SLACK)
        keys = (f"work={settings.job}", f"waits={waits}")
        consumer = stack.enter_context(work.loading("sub", broker.tcp_port, *words, *keys))
        if name == SHARED:
            began = time.monotonic()
            wait_until(lambda: _is_sorted(broker, settings.places), _LIMIT, "all that waits is sorted")
            side.sorting.append(time.monotonic() - began)
        before, began = processor_seconds(broker.pid), time.monotonic()
        sent = _publish(broker, settings, work, is_alone=name == ALONE)
        ended = time.monotonic()
        side.busy.append((processor_seconds(broker.pid) - before) / (ended - began))
        time.sleep(_REST)
        consumer.terminate()  # it ends as after its time
        _result(consumer, SLACK)
        came = [float(line) / 1000 for line in waits.read_text().split()]
        side.came += len(came)
        side.waits.append(sorted([*came, *_ages(sent - len(came), settings.rate, time.monotonic() - ended)]))


def _publish(broker: Broker, settings: NoisySettings, work: Work, *, is_alone: bool) -> int:
    """Publish for all customers, and return the number of the others' messages."""
    others = (TOPIC, 1, 1, SIZE, settings.seconds, 64, f"groups={OTHERS}", "group=1", "stamp=1")
    large = (TOPIC, 1, _STEP, SIZE, settings.seconds, 8, "groups=1", f"rate={settings.rate * settings.times}")
    with ExitStack() as stack:
        if not is_alone:
            beside = stack.enter_context(work.loading("pub", broker.tcp_port, *large))
        publisher = stack.enter_context(work.loading("pub", broker.tcp_port, *others, f"rate={settings.rate}"))
        sent = int(_result(publisher, settings.seconds + SLACK)["msgs"])
        if not is_alone:
            _result(beside, settings.seconds + SLACK)
    return sent


def _result(process: subprocess.Popen[bytes], seconds: float) -> Load:
    out, _ = process.communicate(timeout=seconds)
    load = parsed(out, process.returncode)
    if process.returncode or load["errors"]:
        raise Failed(f"a load ended with status {process.returncode}: {out.decode().strip()}")
    return load


def _is_sorted(broker: Broker, places: int) -> bool:
    said = json.loads(broker.get(f"/channel/groups?topic={TOPIC}&channel={CHANNEL}&limit=0"))
    return int(said["ahead"]) == 0 and broker.channel(TOPIC, CHANNEL)["in_flight_count"] >= places // 2


def _ages(count: int, rate: int, since: float) -> list[float]:
    """Return the ages, in milliseconds, of the last `count` messages, if publishing ended so many seconds ago."""
    return [1000 * (since + number / rate) for number in range(count)]


def publish(report: Report, settings: NoisySettings) -> None:
    """Print the table, and write the result file and its picture."""
    assert isinstance(report.rows, Rows)
    print_table(report)
    path = write_result(report, settings.results, more=report.rows.described())
    replace_file(path.with_suffix(".svg"), noisy_chart.svg(json.loads(path.read_text(encoding="utf-8"))))


def draw_if_asked(settings: NoisySettings) -> bool:
    if settings.draw is None:
        return False
    replace_file(ROOT / noisy_chart.PICTURE, noisy_chart.svg(json.loads(settings.draw.read_text(encoding="utf-8"))))
    print(f"written to {noisy_chart.PICTURE}")
    return True


BENCHMARK: Final = Benchmark(
    "noisy",
    "One customer has a hundred times the load of 999 others: how long do these wait?",
    NoisySettings,
    run,
    at_most=30,
    publish=publish,
    instead=draw_if_asked,
)
