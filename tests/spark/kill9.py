"""Spark and two nsqd are killed again and again while a topic lands in a table: nothing is missing, nothing is there twice.

It lands in Parquet by a query of its own, or in Delta or Iceberg by `nsqpipe land`, on the disk or, Delta, in an S3 server that
runs here. The table is read all the time, and after each kill.

The long version: `python -m tests.spark.kill9 --spark-kills 10 --nsqd-kills 10 --format delta`. It prints its counts and its
seed.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from deltalake import DeltaTable

from pyspark_nsq.stores.places import parse_place
from pyspark_nsq.tables.iceberg_catalogs import open_catalog
from pyspark_nsq.tables.table import Format
from scripts.command_line import option, read_options
from tests.support import iceberg
from tests.support.process import ROOT, SOURCES, Nsqd, SteadyNsqd
from tests.support.s3 import S3Server
from tests.support.spark import KEPT, address

# Seconds for a session to start and catch up. That takes half a minute of processor time, of which a busy machine gives it
# a twentieth.
PATIENCE: Final = 900
PART: Final = 100  # messages of one publish
WINDOW: Final = "idempotence-window=1h"
READ_EVERY: Final = 1.0  # seconds between two reads of a table while it is written; more if a read takes long


class Seen:
    """Which of the published numbers have been found in the table or topic."""

    def __init__(self, bodies: Iterable[pa.Array]) -> None:
        found = pa.chunked_array([body.cast(pa.string()).cast(pa.int64()) for body in bodies], pa.int64())
        self._numbers = found.unique()
        self.duplicates = len(found) - len(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def missing(self, count: int) -> int:
        """Return how many of the first numbers are missing."""
        return count - int(pc.sum(pc.less(self._numbers, count)).as_py() or 0)


@dataclass
class Result:
    seed: int
    acknowledged: int = 0
    landed: Seen = field(default_factory=lambda: Seen(()))
    spark_kills: int = 0
    nsqd_kills: int = 0
    reads: int = 0
    recoveries: list[float] = field(default_factory=list)  # seconds from the kill of Spark to the next commit

    def add_read(self, seen: Seen) -> None:
        """Check a read in between: no message is there twice, and none is gone that an earlier read saw."""
        assert not seen.duplicates, f"seed {self.seed}: seen twice after kill {self.spark_kills}"
        assert len(seen) >= len(self.landed), f"seed {self.seed}: seen and gone after kill {self.spark_kills}"
        self.landed = seen
        self.reads += 1

    @property
    def missing(self) -> int:
        return self.landed.missing(self.acknowledged)

    @property
    def duplicates(self) -> int:
        return self.landed.duplicates

    def __str__(self) -> str:
        recovered = ", ".join(f"{seconds:.1f}" for seconds in self.recoveries)
        return (
            f"seed {self.seed}: {self.acknowledged} acknowledged, {self.missing} missing, {self.duplicates} duplicates, "
            f"{self.spark_kills} kills of Spark, {self.nsqd_kills} of nsqd, {self.reads} reads in between; "
            f"recovered after {recovered} s"
        )


class Publisher(threading.Thread):
    """Publishes numbers at a rate, and repeats each batch with its key until there is an OK."""

    def __init__(self, nodes: list[Nsqd], rate: int, part: int = PART) -> None:
        super().__init__(daemon=True)
        self._part = part
        self.acknowledged = 0
        self._nodes = nodes
        self._rate = rate
        self._stop_asked = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        while not self._stop_asked.is_set():
            first = self.acknowledged
            body = b"\n".join(b"%d" % number for number in range(first, first + self._part))
            node = self._nodes[first // self._part % len(self._nodes)]
            while not self._published(node, first, body):
                time.sleep(0.01)
            self.acknowledged += self._part
            self._stop_asked.wait(max(0.0, began + self.acknowledged / self._rate - time.monotonic()))

    def _published(self, node: Nsqd, first: int, body: bytes) -> bool:
        try:
            return node.http("POST", f"/mpub?topic=orders&key={first}", body).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(PATIENCE)


class Application:
    """Anything that runs Spark, in a session of its own, so that all its processes can be found."""

    def __init__(self, folder: Path, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.checkpoint = folder / "checkpoint"  # if it has one
        self._command = command
        self._environment = environment or {}
        self._log = folder / "spark.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *more],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": SOURCES,
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    **self._environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the JVM, the driver and all Python workers with kill -9."""
        if self._process is None:
            return
        kill_session(self._process.pid, reap=self._process.poll)
        self._process.wait(30)
        self._process = None

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the JVM, the driver and all Python workers."""
        assert self._process is not None
        return processes_of_session(self._process.pid)

    def commits(self) -> int:
        """Return the number of commits so far; Spark keeps the last hundred."""
        return max((int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*")), default=-1) + 1

    def wait_for_commit(self, before: int) -> None:
        self.wait_until(lambda: self.commits() > before)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self._process is not None
            assert self._process.poll() is None, f"Spark ended:\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"did not come true in time:\n{self.log[-4000:]}"
            time.sleep(0.05)

    def wait_for_end(self) -> None:
        assert self._process is not None
        assert self._process.wait(PATIENCE) == 0, self.log[-4000:]

    @property
    def log(self) -> str:
        return self._log.read_text()


class Landing:
    """A table, and the application that fills it."""

    def __init__(
        self,
        folder: Path,
        nodes: list[Nsqd],
        kind: Format,
        store: S3Server | None = None,
        *,
        pace: Sequence[str] = ("maxRowsPerTrigger=50000", "minRowsPerTrigger=0"),  # many commits to kill
    ) -> None:
        self._kind = kind
        self._folder = folder
        self._pace = pace
        self.table = str(folder / "table") if store is None else store.new_uri()
        self._place = parse_place(self.table, {} if store is None else store.storage)
        self._nodes = nodes
        job = [sys.executable, "-m", *self._job(str(folder / "checkpoint"))]
        self.spark = Application(folder, job, {} if store is None else store.environment)

    def _job(self, checkpoint: str) -> list[str]:
        if self._kind is Format.PARQUET:
            return ["tests.spark.driver", "land", ",".join(map(address, self._nodes)), checkpoint, self.table]
        nodes = [f"--nsqd={address(node)}" for node in self._nodes]
        is_iceberg = self._kind is Format.ICEBERG
        places = iceberg.flags(self._folder) if is_iceberg else ["--format=delta", f"--table={self.table}"]
        pace = [f"--source-option={it}" for it in self._pace]
        return ["nsqpipe", "land", *nodes, "--topic=orders", *places, f"--checkpoint={checkpoint}", *pace]

    def landed(self) -> Seen:
        """Return what a reader sees in the table now."""
        if self._kind is Format.ICEBERG:
            is_there = open_catalog(iceberg.catalog_at(self._folder)).table_exists("raw.table")
            return Seen(iceberg.rows_in(self._folder)["body"].chunks if is_there else ())
        filesystem, root = self._place.filesystem()
        return Seen(
            chunk
            for file in sorted(self._committed_files())
            for chunk in pyarrow.parquet.read_table(f"{root}{file}", columns=["body"], filesystem=filesystem)[
                "body"
            ].chunks
        )

    def _committed_files(self) -> set[str]:
        """Return the files within the table that are committed.

        They are those of Delta's newest version, or those in the log of Spark's file sink, which has a file for each
        batch, and now and then one for all before.
        """
        return {uri.removeprefix(self.table) for uri in self._committed_uris()}

    def _committed_uris(self) -> set[str]:
        if self._kind is Format.DELTA:
            is_there = DeltaTable.is_deltatable(**self._place.for_delta())
            return set(DeltaTable(**self._place.for_delta()).file_uris()) if is_there else set()
        while True:
            try:
                lists = [path.read_text() for path in (Path(self.table) / "_spark_metadata").glob("[0-9]*")]
            except FileNotFoundError:  # it was joined with others meanwhile
                continue
            lines = [line for text in lists for line in text.splitlines()[1:]]
            return {line.split('"path":"file://')[1].split('"')[0] for line in lines}


class Looker(threading.Thread):
    """Reads a table again and again while it is written."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.stop_asked = threading.Event()
        self._look = look
        self._failure: BaseException | None = None

    def run(self) -> None:
        pause = READ_EVERY
        while not self.stop_asked.wait(pause):
            began = time.monotonic()
            try:
                self._look()
            except BaseException as failure:
                self._failure = failure
                return
            pause = max(READ_EVERY, 5 * (time.monotonic() - began))  # it must not take processor time that Spark needs

    def stop(self) -> None:
        """Stop. Raise what a read has raised."""
        self.stop_asked.set()
        self.join(PATIENCE)
        if self._failure is not None:
            raise self._failure


@contextmanager
def suppressed() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        pass


def kill_session(session: int, *, reap: Callable[[], object] = lambda: None) -> None:
    """Kill all processes of a session, until there are none. `reap` waits for the children among them."""
    while found := processes_of_session(session):
        for pid in found:
            with suppressed():
                os.kill(pid, signal.SIGKILL)
        reap()


def processes_of_session(session: int, *, are_stopped: bool = False) -> list[int]:
    """Return the process ids of a session: of all that have not ended, or of those that a signal has stopped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and (fields[0] == "T" if are_stopped else fields[0] != "Z"):
            found.append(int(path.parent.name))
    return found


def run(
    folder: Path,
    *,
    kind: Format,
    spark_kills: int,
    nsqd_kills: int,
    rate: int,
    seed: int,
    store: S3Server | None = None,
) -> Result:
    draw, result, lock = random.Random(seed), Result(seed), threading.Lock()
    with SteadyNsqd(folder / "one", KEPT, WINDOW) as one, SteadyNsqd(folder / "two", KEPT, WINDOW) as two:
        nodes: list[Nsqd] = [one, two]
        for node in nodes:
            node.post("/topic/create?topic=orders")
        publisher, landing = Publisher(nodes, rate), Landing(folder, nodes, kind, store)
        spark = landing.spark

        def look() -> None:
            with lock:  # reads have to be recorded in the order in which they happened
                result.add_read(landing.landed())

        looker = Looker(look)
        publisher.start()
        spark.start()
        looker.start()
        try:
            spark.wait_for_commit(0)
            for turn in range(spark_kills):
                time.sleep(draw.random() * 2)  # the kill may come at any moment of a batch
                spark.kill()
                killed_at, commits = time.monotonic(), spark.commits()
                result.spark_kills += 1
                look()
                spark.start()
                spark.wait_for_commit(commits)
                result.recoveries.append(time.monotonic() - killed_at)
                # That batch may have been planned before the kill. With the next one the source has asked all nodes, which
                # must be up when a query begins.
                spark.wait_for_commit(spark.commits())
                while result.nsqd_kills < nsqd_kills * (turn + 1) // spark_kills:
                    node = draw.choice(nodes)
                    node.kill()
                    node.start()
                    result.nsqd_kills += 1
                    spark.wait_for_commit(spark.commits())
            publisher.stop()
            result.acknowledged = publisher.acknowledged
            wait_for_rows(landing, result.acknowledged)
            looker.stop()
        finally:
            looker.stop_asked.set()
            publisher.stop()
            spark.kill()
        result.landed = landing.landed()
    return result


def wait_for_rows(landing: Landing, count: int) -> None:
    """Return when this many rows have landed. Raise if none has come for as long as a start may take."""
    landed, deadline = len(landing.landed()), time.monotonic() + PATIENCE
    while landed < count:
        time.sleep(1)
        before, landed = landed, len(landing.landed())
        if landed > before:
            deadline = time.monotonic() + PATIENCE
        assert time.monotonic() < deadline, (
            f"{landed:,} rows of {count:,}, and no more come: {landing.spark.log[-4000:]}"
        )


@dataclass(frozen=True, kw_only=True)
class Kill9Options:
    format: Format = option(Format.PARQUET, "of the table", parse=Format, word="|".join(Format))
    store: str = option("disk", "where the table lies; s3: with Delta only", choices=("disk", "s3"))
    spark_kills: int = option(10, "of Spark")
    nsqd_kills: int = option(10, "of nsqd")
    rate: int = option(10_000, "messages a second")
    seed: int = option(random.randrange(1 << 32), "where all chance comes from (default: a new one)")


def main() -> int:
    given = read_options(Kill9Options, name="python -m tests.spark.kill9", about=__doc__)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="nsq-kill9-")))
        store = opened.enter_context(S3Server(folder)) if given.store == "s3" else None
        result = run(
            folder,
            kind=given.format,
            spark_kills=given.spark_kills,
            nsqd_kills=given.nsqd_kills,
            rate=given.rate,
            seed=given.seed,
            store=store,
        )
    sys.stdout.write(f"{result}\n")
    return 1 if result.missing or result.duplicates else 0


if __name__ == "__main__":
    sys.exit(main())
