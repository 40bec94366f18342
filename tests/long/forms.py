"""The long forms: what each runs, how long it takes, and what it needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.support import hangs
from tests.support.lengths import LONG
from tests.support.process import ROOT

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Form:
    """A command of Python, in whose words `{seed}`, `{minutes}` and `{count}` are filled in.

    One with `{minutes}` or `{count}` may be made shorter or longer; the others take as long as they take.
    """

    name: str
    about: str
    minutes: float  # on an idle machine
    command: tuple[str, ...]
    per_minute: float = 0.0  # of what it counts: seeds, kills, messages
    environ: Mapping[str, str] = field(default_factory=lambda: _NONE)
    needs: tuple[str, ...] = ()  # names of tests/support/needs.py

    @property
    def is_scaled(self) -> bool:
        return any("{minutes}" in word or "{count}" in word for word in (*self.command, *self.environ.values()))

    def takes(self, minutes: float | None) -> float:
        return minutes if minutes is not None and self.is_scaled else self.minutes

    def started_with(self, seed: int, minutes: float | None) -> tuple[list[str], dict[str, str]]:
        """Return the command and the variables of the environment that it needs."""
        length = self.takes(minutes)
        values = {"seed": seed, "minutes": f"{length:g}", "count": max(1, round(length * self.per_minute))}
        words = [word.format_map(values) for word in self.command]
        return [sys.executable, *words], {name: text.format_map(values) for name, text in self.environ.items()}


def files_with_two_forms() -> list[str]:
    """Return the files whose tests have a long form, because they use tests/support/lengths.py."""
    return sorted(str(path.relative_to(ROOT)) for path in _test_files() if "tests.support.lengths" in path.read_text())


def _test_files() -> Iterator[Path]:
    own = Path(__file__).parent
    return (path for path in (ROOT / "tests").rglob("test_*.py") if path.parent != own)


def _faults(name: str, *words: str) -> tuple[str, ...]:
    return ("-m", "tests.simulation", name, *words)


def _failovers(suite: str, *words: str) -> tuple[str, ...]:
    return ("-m", "tests.failover", suite, "--count={count}", "--from-seed={seed}", *words)


def _pytest(*words: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *words)


_FOR_A_TIME: Final = ("--minutes={minutes}", "--seed={seed}")
_KILLS: Final = ("--kills={count}", "--seed={seed}")
_LIVES: Final = ("--seeds={count}", "--from={seed}")

FORMS: Final = (
    Form("simulate", "random lives on a simulated disk", 15, _faults("simulate", *_LIVES), 670),
    Form("history", "the same, and channels go back in their history", 20, _faults("history", *_LIVES), 500),
    Form("power-loss", "the same with --ack=synced and power cuts", 3, _faults("power-loss", *_LIVES), 670),
    Form("groups", "random lives in which messages have groups", 20, _faults("groups", *_LIVES), 500),
    Form("several-machines", "machines that want one name in a store", 25, _faults("several-machines", *_LIVES), 800),
    Form("standbys", "the same, with standbys", 8, _faults("standbys", *_LIVES), 600),
    Form("lost-machines", "whole nodes that go on elsewhere", 20, _faults("lost-machines", *_LIVES), 100),
    Form(
        "confirmed-lives", "the same, and publishers wait for the store", 20, _faults("confirmed-lives", *_LIVES), 100
    ),
    Form("prefixes", "the same, and starts from many prefixes", 3, _faults("prefixes", *_LIVES), 100),
    Form("steps", "a script, cut at each call of the disk in each way", 3, _faults("steps")),
    Form(
        "deferred",
        "messages that are due within a week, and sudden deaths",
        1,
        _faults("deferred", "--messages={count}", "--seed={seed}"),
        100_000,
    ),
    Form(
        "models",
        "the state machines of tests/model",
        15,
        _pytest("tests/model", "--hypothesis-seed={seed}", "--hypothesis-show-statistics"),
        1_100,
        environ={"MODEL_EXAMPLES": "{count}", LONG: "1", "CI": ""},
    ),
    Form(
        "flips",
        "a flipped bit anywhere in a data path",
        20,
        _pytest("tests/simulation/test_damage_flips.py"),
        5_000,
        environ={"NSQ_FLIPS": "{count}", "NSQ_SEED": "{seed}"},
    ),
    Form("fuzz", "mutated input for every parser", 60, ("-m", "tests.fuzz", *_FOR_A_TIME)),
    Form("network", "a bad network between clients and nsqd", 30, _faults("network", *_FOR_A_TIME)),
    Form("standstill", "nsqd stands still for 5 to 120 s", 30, _faults("standstill", *_FOR_A_TIME)),
    Form("clock", "the wall clock jumps", 30, _faults("clock", *_FOR_A_TIME), needs=("libfaketime",)),
    Form("disk-faults", "a disk that fails", 10, _faults("disk-faults", *_FOR_A_TIME), needs=("C compiler",)),
    Form("power-cuts", "a disk that loses its power", 10, _faults("power-cuts", *_FOR_A_TIME), needs=("C compiler",)),
    Form(
        "power-cuts-written",
        "the same with --ack=written, which loses a little",
        10,
        _faults("power-cuts", "--ack=written", *_FOR_A_TIME),
        needs=("C compiler",),
    ),
    Form(
        "kill9",
        "kill -9 of nsqd under every load",
        30,
        ("-m", "tests.e2e.kill9", "--cycles={count}", "--seed={seed}"),
        33,
    ),
    Form("keyed-kill9", "kill -9 while clients repeat themselves", 10, ("-m", "tests.e2e.keyed_kill9", *_KILLS), 20),
    Form("failover-lost", "machines are lost with their disks", 60, _failovers("rf1"), 13, environ={LONG: "1"}),
    Form(
        "failover-lost-s3",
        "the same with an S3 server and a bad network",
        60,
        _failovers("rf1", "--store=moto"),
        6,
        environ={LONG: "1"},
        needs=("obstore",),
    ),
    Form(
        "failover-lost-ceph",
        "the same with Ceph's gateway",
        60,
        _failovers("rf1", "--store=ceph"),
        6,
        environ={LONG: "1"},
        needs=("obstore", "Ceph"),
    ),
    Form(
        "failover-lost-azurite",
        "the same with Azure's emulator",
        60,
        _failovers("rf1", "--store=azurite"),
        6,
        environ={LONG: "1"},
        needs=("obstore", "Azurite"),
    ),
    Form("failover-disks", "owners end, and go on with a disk", 20, _failovers("disks"), 8, environ={LONG: "1"}),
    Form(
        "failover-standby",
        "machines are lost with their disks, and a standby takes over",
        60,
        _failovers("rf1", "--standby"),
        13,
        environ={LONG: "1"},
    ),
    Form(
        "failover-standby-frozen",
        "owners stand still, a standby takes over, and they become the next one",
        60,
        _failovers("rf2", "--standby"),
        5,
        environ={LONG: "1"},
    ),
    Form(
        "failover-standby-cut-off",
        "the owner, the store and a standby can't reach each other",
        60,
        _failovers("rf3", "--standby", "--store=moto"),
        1,
        environ={LONG: "1"},
        needs=("obstore",),
    ),
    Form(
        "failover-standbys",
        "ten standbys wait for one owner",
        30,
        _failovers("rf6", "--standby"),
        2,
        environ={LONG: "1"},
    ),
    Form("failover-frozen", "owners stand still, and go on", 60, _failovers("rf2"), 5, environ={LONG: "1"}),
    Form(
        "failover-cut-off",
        "the owner or the next one can't reach the store",
        60,
        _failovers("rf3", "--store=moto"),
        1,
        environ={LONG: "1"},
        needs=("obstore",),
    ),
    Form("failover-away", "the store is away", 60, _failovers("rf4"), 1, environ={LONG: "1"}),
    Form(
        "failover-power",
        "owners lose their power, and go on",
        30,
        _failovers("rf5"),
        10,
        environ={LONG: "1"},
        needs=("C compiler",),
    ),
    Form("failover-claimants", "ten processes want the name at once", 30, _failovers("rf6"), 2, environ={LONG: "1"}),
    Form("failover-damage", "objects are damaged before a takeover", 30, _failovers("rf8"), 8, environ={LONG: "1"}),
    Form(
        "failover-spark",
        "Spark reads while machines are lost with their disks",
        30,
        _failovers("rf7"),
        0.5,
        environ={LONG: "1"},
        needs=("Java", "pyspark"),
    ),
    Form(
        "failover-restore",
        "a node of 2 GB is fetched to an empty disk",
        10,
        _failovers("rf9", "--store=moto", "--size=2"),
        0.2,
        needs=("obstore",),
    ),
    Form("archive-kill9", "kill -9 of nsq_to_file", 10, ("-m", "tests.e2e.archive_kill9", *_KILLS), 20),
    Form("bury", "kill -9 while messages are buried and kicked", 30, _faults("bury", *_KILLS), 33),
    Form("group-kills", "kill -9 while consumers handle groups", 20, _faults("group-kills", *_KILLS), 50),
    Form("edit-kills", "kill -9 while messages are edited and run", 20, _faults("edit-kills", *_KILLS), 25),
    Form("outbox", "kill -9 of the relays of an outbox", 15, _faults("outbox", *_KILLS), 13),
    Form(
        "outbox-postgres",
        "the same, and of Postgres",
        20,
        _faults("outbox", "--database=postgres", *_KILLS),
        10,
        needs=("Postgres",),
    ),
    Form(
        "moving-nodes",
        "nodes and nsqlookupds are killed in turn",
        10,
        ("-m", "tests.e2e.moving_nodes", "--minutes={minutes}"),
    ),
    Form("jobs", "kill -9 of Celery's workers and of nsqd", 25, _faults("jobs", "--library=celery", "--seed={seed}")),
    Form(
        "verdicts",
        "nodes hang and die, channels are stuck and lose messages, and no verdict of nsqadmin improves",
        15,
        ("-m", "tests.nsqadmin.scenario", "--count={count}", "--seed={seed}"),
        0.7,
    ),
    Form("abandoned", "a channel that nobody consumes, on a small disk", 7, _faults("abandoned")),
    Form(
        "rivals",
        "brokers of this year in `bench peers`",
        8,
        _pytest("tests/e2e/rivals.py"),
        environ={hangs.VARIABLE: "1000"},  # Kafka's many JVMs take minutes
        needs=("C compiler",),
    ),
    Form("released", "an upgrade from the last release, and back", 1, _faults("released")),
    Form("going-back", "an upgrade from an older commit, and back", 1, _faults("going-back")),
    Form(
        "go-import",
        "kill -9 while a data path of Go's nsqd is imported",
        5,
        ("-m", "tests.simulation.go_import", "--messages={count}", "--seed={seed}"),
        200_000,
    ),
    Form(
        "object-stores",
        "object stores: Ceph and Azurite, too",
        4,
        _pytest("tests/nsqd/remote/stores"),
        environ={LONG: "1"},
    ),
    Form(
        "tests",
        "every test that has two forms, in its long one",
        20,
        (*_pytest("--durations=20"), *files_with_two_forms()),
        environ={LONG: "1"},
    ),
    Form("soak", "everything at once", 60, ("-m", "tests.soak", *_FOR_A_TIME)),
    Form(
        "spark-kill9",
        "kill -9 of Spark and nsqd while a topic lands in Parquet",
        30,
        ("-m", "tests.spark.kill9", "--seed={seed}"),
        needs=("Java", "pyspark"),
    ),
    Form(
        "spark-delta-kill9",
        "the same in Delta",
        30,
        ("-m", "tests.spark.kill9", "--format=delta", "--seed={seed}"),
        needs=("Java", "pyspark"),
    ),
    Form(
        "spark-sink-kill9",
        "kill -9 of Spark while it copies a topic",
        20,
        ("-m", "tests.spark.sink_kill9", *_KILLS),
        0.4,
        needs=("Java", "pyspark"),
    ),
    Form(
        "spark-million",
        "two queries read a topic beside a consumer",
        10,
        ("-m", "tests.spark.million", "--messages={count}"),
        100_000,
        needs=("Java", "pyspark"),
    ),
)
