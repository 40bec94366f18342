"""Tables and checkpoints in random disorder: nothing is twice or missing, or one line says within two seconds why not.

A topic, and a second one, grow and land in a table while checkpoints are deleted, exchanged and taken from other jobs, two jobs
land at once, and landings are killed at any moment. After each disorder a landing either goes on or is refused at once; where it
is refused, whoever runs it takes the checkpoint away, and it goes on where the table ends. At the end everything has to be there
once.

`python -m tests.spark.standing --orders 20` does it with `nsqpipe land` itself, killed by kill -9. Each order starts Spark
some twenty times, which takes two minutes on a quiet machine and ten on a busy one, where refusals may also need more than
their two seconds. With `--model` the same happens in this process: the source, the tasks and the commits are ours, only what
Spark does around them is `Model`, batch by batch with offsets and commits as Spark writes them, and a kill is an exception. The
short form in CI is that.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.options import source_options
from pyspark_nsq.source.queries import From
from pyspark_nsq.source.ranges import COLUMNS
from pyspark_nsq.source.stream_source import NsqStreamReader
from pyspark_nsq.tables.landing import Landed, LandingWriter, land, landing_of, schemas
from pyspark_nsq.tables.shares import AnotherJob, NotJoined
from pyspark_nsq.tables.standing import check_standing
from pyspark_nsq.tables.table import Format, Table
from scripts.command_line import option, read_options
from tests.spark.kill9 import processes_of_session, suppressed
from tests.support import iceberg
from tests.support.process import ROOT, SOURCES, Nsqd
from tests.support.spark import KEPT, address, numbered, publish

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE: Final = 2.0  # seconds within which a refusal has to come
PART: Final = 300  # messages that are published between two disorders
LIMIT: Final = 300  # seconds for one landing on a busy machine
TOPICS: Final = ("orders", "others")
Crash = Callable[[str], None]


class Refused(Exception):
    """The landing has said why it does not go on."""


class Killed(Exception):
    """Stands for a kill in this process."""


class Engine(Protocol):
    slowest: float  # the longest that a refusal before Spark took, in seconds

    def land(self, topic: str, table: Path, checkpoint: Path) -> None:
        """Land everything that is there. Raise Refused."""

    def land_and_kill(self, topic: str, table: Path, checkpoint: Path) -> None:
        """Land, and be killed at any moment."""

    def land_twice(self, topic: str, table: Path, checkpoint: Path, other: Path) -> None:
        """Land with two jobs at once, of which one may lose, and say so."""


@dataclass
class Result:
    seed: int
    published: int = 0
    missing: int = 0
    twice: int = 0
    slowest: float = 0.0  # seconds of a refusal
    refused: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.twice)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.published} published, {self.missing} missing, {self.twice} twice, "
            f"{len(self.refused)} refusals, after {self.slowest:.1f} s at most; {', '.join(self.done)}"
        )


class Order:
    """One random order of disorders."""

    def __init__(self, folder: Path, nsqd: Nsqd, engine: Engine, seed: int, kind: Format) -> None:
        self._draw = random.Random(seed)
        self._kind = kind
        self._nsqd = nsqd
        self._engine = engine
        self._names = {topic: f"{topic}_{seed}" for topic in TOPICS}
        self._table = folder / "table"
        self._checkpoint = folder / "table.checkpoint"
        self._spare = folder / "spare.checkpoint"  # another job's checkpoint of the same table
        self._strange = folder / "strange.checkpoint"  # the checkpoint of another table
        self._strange_table = folder / "strange"
        self._published = dict.fromkeys(TOPICS, 0)
        self.result = Result(seed)

    def run(self, steps: int) -> Result:
        disorders = [
            self.delete_the_checkpoint,
            self.take_a_foreign_checkpoint,
            self.two_jobs,
            self.kill,
            self.wrong_topic,
        ]
        self._publish()
        self._land()
        chosen = [*self._draw.sample(disorders, len(disorders)), *self._draw.choices(disorders, k=steps)][:steps]
        for disorder in chosen:
            self._publish()
            self.result.done.append(disorder.__name__)
            disorder()
        self._land()
        self._count()
        self.result.slowest = self._engine.slowest
        return self.result

    # Disorders

    def delete_the_checkpoint(self) -> None:
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._land()

    def take_a_foreign_checkpoint(self) -> None:
        """Use a checkpoint of the same topic and another table, which may be behind ours or ahead of it."""
        if self._draw.random() < 0.5 or not self._strange.exists():
            self._engine.land(self._names["orders"], self._strange_table, self._strange)
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        shutil.copytree(self._strange, self._checkpoint)
        self._land()

    def two_jobs(self) -> None:
        with self._told():
            self._engine.land_twice(self._names["orders"], self._table, self._checkpoint, self._spare)
        self._land()

    def kill(self) -> None:
        with self._told():
            self._engine.land_and_kill(self._names["orders"], self._table, self._checkpoint)
        self._land()

    def wrong_topic(self) -> None:
        """Land another topic with our checkpoint."""
        try:
            self._engine.land(self._names["others"], self._table, self._checkpoint)
        except Refused as refused:
            self._note(refused)
        else:
            raise AssertionError(f"seed {self.result.seed}: a checkpoint of another topic was taken")

    # Steps in between

    def _publish(self) -> None:
        for topic, name in self._names.items():
            count = self._draw.randrange(1, PART)
            publish(self._nsqd, name, numbered(count, start=self._published[topic]))
            self._published[topic] += count

    def _land(self) -> None:
        """Land like a user who reads why it is refused."""
        try:
            self._engine.land(self._names["orders"], self._table, self._checkpoint)
        except Refused as refused:
            self._note(refused)
            shutil.rmtree(self._checkpoint)
            self._engine.land(self._names["orders"], self._table, self._checkpoint)

    def _told(self) -> NotedRefusals:
        return NotedRefusals(self._note)

    def _note(self, refused: Refused) -> None:
        said = str(refused)
        assert "\n" not in said, said
        assert any(word in said for word in ("checkpoint", "another job")), f"no cause is named: {said}"
        self.result.refused.append(said)

    def _count(self) -> None:
        bodies = _rows(self._table, self._kind)
        assert set(bodies["topic"].to_pylist()) == {self._names["orders"]}
        numbers = [int(body) for body in bodies["body"].to_pylist()]
        self.result.published = self._published["orders"]
        self.result.twice = len(numbers) - len(set(numbers))
        self.result.missing = len(set(range(self.result.published)) - set(numbers))


def _table(path: Path, kind: Format, checkpoint: Path) -> Table:
    """Return the table at this path; an Iceberg table belongs to a catalog beside it."""
    if kind is Format.ICEBERG:
        return iceberg.table_at(path.parent, f"raw.{path.name}", str(checkpoint))
    return Table(str(path), kind, str(checkpoint))


def _rows(path: Path, kind: Format) -> pa.Table:
    if kind is Format.ICEBERG:
        return iceberg.rows_in(path.parent, f"raw.{path.name}")
    return DeltaTable(path).to_pyarrow_table(columns=["topic", "body"])


class NotedRefusals:
    """Notes refusals within, which are no failure: two jobs, or a killed one, leave the rest to the next landing."""

    def __init__(self, note: Callable[[Refused], None]) -> None:
        self._note = note

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> bool:
        if isinstance(error, Refused):
            self._note(error)
        return isinstance(error, Refused)


# In this process


class Model:
    """A model of Spark: plan, write down the end, run tasks, commit, write that down.

    If two run at once, they take turns batch by batch.
    """

    def __init__(self, nsqd: Nsqd, draw: random.Random, kind: Format) -> None:
        self._nsqd = nsqd
        self._draw = draw
        self._kind = kind
        self.slowest = 0.0

    def land(self, topic: str, table: Path, checkpoint: Path) -> None:
        for _ in self._batches(topic, table, checkpoint, lambda moment: None):
            pass

    def land_and_kill(self, topic: str, table: Path, checkpoint: Path) -> None:
        left = self._draw.randrange(12)

        def crash(moment: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed(moment)

        try:
            for _ in self._batches(topic, table, checkpoint, crash):
                pass
        except Killed:
            pass

    def land_twice(self, topic: str, table: Path, checkpoint: Path, other: Path) -> None:
        jobs = [self._batches(topic, table, it, lambda moment: None) for it in (checkpoint, other)]
        refused: list[Refused] = []
        while jobs:
            job = self._draw.choice(jobs)
            try:
                next(job)
            except StopIteration:
                jobs.remove(job)
            except Refused as error:
                refused.append(error)
                jobs.remove(job)
        if refused:
            raise refused[0]

    def _batches(self, topic: str, table: Path, checkpoint: Path, crash: Crash) -> Iterator[str]:
        began = time.monotonic()
        try:
            asked = From(topics=(topic,), nsqd=(address(self._nsqd),), options={"maxRowsPerTrigger": "150"})
            to = _table(table, self._kind, checkpoint)
            source = check_standing(asked, to)
        except PipeFailed as failed:
            self.slowest = max(self.slowest, time.monotonic() - began)
            raise Refused(str(failed)) from failed
        try:
            yield from _Query(source, to, checkpoint, crash).run()
        except (AnotherJob, NotJoined) as error:
            raise Refused(str(error)) from error


class _Query:
    def __init__(self, source: From, table: Table, checkpoint: Path, crash: Crash) -> None:
        self._checkpoint = checkpoint
        self._crash = crash
        told = {f"source.{name}": text for name, text in source.as_options().items()}
        rows, _ = schemas(source_options(source.as_options()), None, drops_body=False)
        self._landing = landing_of({**table.sink_options(rows), **told}, from_arrow_schema(COLUMNS))
        options = source_options({**source.as_options(), "ranges": "true", "rowsPerTask": "75"})
        self._reader = NsqStreamReader(options, COLUMNS)
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        metadata = checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        self._id = json.loads(metadata.read_text())["id"]

    def run(self) -> Iterator[str]:
        try:
            yield from self._run()
        finally:
            self._reader.stop()  # otherwise its threads would go on in the tests of other modules

    def _run(self) -> Iterator[str]:
        self._reader.prepareForTriggerAvailableNow()
        planned, done = self._numbers("offsets"), self._numbers("commits")
        number = max(planned, default=0) if set(planned) - set(done) else max(planned, default=-1) + 1
        while True:
            start = self._offset(number - 1) if number else self._reader.initialOffset()
            if (self._checkpoint / "offsets" / str(number)).exists():
                end = self._offset(number)
            else:
                end = self._reader.latestOffset(start, ReadMaxRows(150))
                if number and end == start:
                    return
                self._crash("before the plan")
                settings = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
                self._write("offsets", number, f"v1\n{settings}\n{json.dumps(end)}")
            yield "planned"
            tasks = [self._task(number, it, part) for it, part in enumerate(self._partitions(start, end))]
            yield "written"
            self._commit(number, tasks)
            yield "committed"
            self._crash("before Spark's commit")
            self._write("commits", number, 'v1\n{"nextBatchWatermarkMs":0}')
            number += 1

    def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        self._crash("before the tasks")
        return list(self._reader.partitions(start, end))

    def _task(self, number: int, place: int, partition: Any) -> Landed:
        rows = self._reader.read(partition)
        return land(self._landing, rows, query=self._id, name=f"{self._id}-{number}-{place:05d}")

    def _commit(self, number: int, tasks: list[Landed]) -> None:
        self._crash("before the commit")
        writer = LandingWriter(self._landing)
        try:
            writer.commit(list(tasks), number)
        except (AnotherJob, NotJoined):
            writer.abort(list(tasks), number)
            raise

    def _offset(self, number: int) -> dict[str, Any]:
        return dict(json.loads((self._checkpoint / "offsets" / str(number)).read_text().splitlines()[2]))

    def _numbers(self, name: str) -> list[int]:
        return [int(it.name) for it in (self._checkpoint / name).iterdir()]

    def _write(self, name: str, number: int, text: str) -> None:
        path = self._checkpoint / name / str(number)
        if path.exists():  # as in Spark: two queries on one checkpoint
            raise Refused(f"another job has the checkpoint {self._checkpoint}")
        path.write_text(text)


# With Spark


class Command:
    """`nsqpipe land`, a process for each landing."""

    def __init__(self, nsqd: Nsqd, draw: random.Random, kind: Format) -> None:
        self._nsqd = nsqd
        self._draw = draw
        self._kind = kind
        self.slowest = 0.0

    def land(self, topic: str, table: Path, checkpoint: Path) -> None:
        self._need_end(self._start(topic, table, checkpoint), time.monotonic())

    def land_and_kill(self, topic: str, table: Path, checkpoint: Path) -> None:
        process = self._start(topic, table, checkpoint)
        plans = len(list(checkpoint.glob("offsets/*")))
        end = time.monotonic() + LIMIT
        while process.poll() is None and len(list(checkpoint.glob("offsets/*"))) == plans and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(self._draw.random())
        while found := processes_of_session(process.pid):
            for pid in found:
                with suppressed():
                    os.kill(pid, signal.SIGKILL)
            process.poll()
        process.communicate()

    def land_twice(self, topic: str, table: Path, checkpoint: Path, other: Path) -> None:
        jobs = [self._start(topic, table, it) for it in (checkpoint, other)]
        began = time.monotonic()
        refused: list[Refused] = []
        for job in jobs:
            try:
                self._need_end(job, began)
            except Refused as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def _start(self, topic: str, table: Path, checkpoint: Path) -> subprocess.Popen[str]:
        places = [f"--nsqd={address(self._nsqd)}", f"--topic={topic}", f"--checkpoint={checkpoint}"]
        places += (
            iceberg.flags(table.parent, f"raw.{table.name}") if self._kind is Format.ICEBERG else [f"--table={table}"]
        )
        pace = ["--source-option=maxRowsPerTrigger=150", "--source-option=rowsPerTask=40"]
        return subprocess.Popen(
            [sys.executable, "-m", "nsqpipe", "land", *places, *pace, "--until-now", "--quiet", "--master=local[2]"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": SOURCES},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _need_end(self, process: subprocess.Popen[str], began: float) -> None:
        _, said = process.communicate(timeout=LIMIT)
        if process.returncode:
            lines = [line for line in said.splitlines() if not line.startswith("nsqpipe: what Spark says")]
            if lines and "another job" not in lines[-1]:
                self.slowest = max(self.slowest, time.monotonic() - began)
            raise Refused(lines[-1] if lines else f"status {process.returncode}")


def run(
    folder: Path,
    *,
    engine: type[Model] | type[Command],
    orders: int,
    steps: int,
    seed: int,
    kind: Format = Format.DELTA,
) -> Iterator[Result]:
    with Nsqd(folder / "node", KEPT) as nsqd:
        for number in range(orders):
            place = folder / f"order-{number}"
            place.mkdir()
            yield Order(place, nsqd, engine(nsqd, random.Random(seed + number), kind), seed + number, kind).run(steps)


@dataclass(frozen=True, kw_only=True)
class StandingOptions:
    orders: int = option(20, "how many orders of disorders")
    steps: int = option(6, "disorders in each")
    seed: int = option(random.randrange(1 << 32), "where all chance comes from (default: a new one)")
    model: bool = option(False, "without Spark")
    format: str = option("delta", "of the table", choices=("delta", "iceberg"))


def main() -> int:
    given = read_options(StandingOptions, name="python -m tests.spark.standing", about=__doc__)
    logging.getLogger("pyspark_nsq").setLevel(logging.ERROR)  # abandoned readers log the end of nsqd
    status = 0
    with tempfile.TemporaryDirectory(prefix="nsq-standing-") as folder:
        engine = Model if given.model else Command
        kind = Format(given.format)
        for result in run(
            Path(folder), engine=engine, orders=given.orders, steps=given.steps, seed=given.seed, kind=kind
        ):
            sys.stdout.write(f"{result}\n" + "".join(f"  {line}\n" for line in result.refused))
            sys.stdout.flush()
            status |= not (result.is_exact and result.slowest < AT_ONCE)
    return status


if __name__ == "__main__":
    sys.exit(main())
