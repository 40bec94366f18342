"""Checks of a job before Spark is started: each function checks one thing, and raises one line if the job cannot work.

The cheap checks come first, then this machine's disk, then the nodes. Checks leave nothing behind. If a check can't get
an answer in time, it leaves the question to the job, which has more patience: a check only refuses what it knows to be
wrong.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqpipe.doctor import GET_PYICEBERG
from nsqpipe.jobs import (
    Aggregate,
    AtCluster,
    Backfill,
    Bench,
    Bodies,
    Decoding,
    Dedupe,
    Land,
    OfStreams,
    OnSpark,
    Quality,
    Replay,
    Stored,
)
from pyspark_nsq.failures import PipeFailed, WrongUsage, first_cause
from pyspark_nsq.kinds import Format
from pyspark_nsq.stores.folders import check_folder

if TYPE_CHECKING:
    from nsqpipe.settings import Job
    from pyspark_nsq.options import SourceOptions

_PATIENCE: Final = 1.0  # seconds for all nodes together
_CONNECT_PATIENCE: Final = 0.4  # seconds for a master or a Connect server, so that all checks take 1.5 s at most
_MASTER: Final = re.compile(r"local(-cluster)?(\[[^\]]+\])?|yarn|spark://(.+)|k8s://.+")
_TCP_PORT: Final = "E_BAD_PROTOCOL"  # the answer of a TCP protocol port to a GET


def check(job: Job) -> None:
    """Check everything that can be checked without Spark. Raises PipeFailed or WrongUsage."""
    check_session(job)
    check_work(job)


def check_session(job: Job) -> None:
    """Check the shared parts of jobs in one session: Spark's master or server, and the port for metrics."""
    if isinstance(job, OnSpark):
        _spark(job)
    if isinstance(job, OfStreams) and job.metrics_address:
        _can_listen(job.metrics_address)


def check_work(job: Job) -> None:
    """Check a job's sources and targets."""
    if not getattr(job, "remote", ""):  # with Spark Connect, paths are the server's
        _paths(job)
    if isinstance(job, (Decoding, Quality)) and job.rules is not None:
        _rules(job.rules)
    if isinstance(job, Bodies):
        _decoder(job)
    if isinstance(job, Replay):
        _sink(job)
    elif isinstance(job, (Land, Aggregate, Backfill, Bench)):
        _source(job)


# Spark and ports


def _spark(job: OnSpark) -> None:
    if job.log is not None:
        _file("--log", job.log)
    found = _MASTER.fullmatch(job.master)
    if found is None:
        raise WrongUsage(f"--master {job.master!r} is not a master: local[*], spark://host:7077, yarn or k8s://...")
    if job.remote and not re.fullmatch(r"sc://[^/]+(/.*)?", job.remote):
        raise WrongUsage(f"--remote {job.remote!r} is not a Spark Connect server: expected sc://host:15002")
    if job.remote:
        _can_connect("--remote", job.remote.removeprefix("sc://").partition("/")[0], 15002)
    elif found[3]:
        masters = found[3].split(",")
        if len(masters) == 1:  # of several, one will do
            _can_connect("--master", masters[0], 7077)


def _can_connect(flag: str, address: str, port: int) -> None:
    host, _, given = address.rpartition(":")
    if not given.isdecimal():
        host, given = address, str(port)

    def look() -> None:
        try:
            socket.create_connection((host.strip("[]"), int(given)), timeout=_CONNECT_PATIENCE).close()
        except TimeoutError:
            return  # slow is not wrong
        except (OSError, OverflowError) as error:
            raise PipeFailed(f"{flag}: {address} cannot be reached: {first_cause(error)}") from None

    _within(_CONNECT_PATIENCE, look)


def _can_listen(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host or "127.0.0.1", int(port))).close()
    except (OSError, OverflowError) as error:
        raise PipeFailed(f"--metrics-address {address}: {first_cause(error)}") from None


# Paths


def _paths(job: Job) -> None:
    match job:
        case Land() if job.is_iceberg:
            _iceberg(job)
            _folder("--checkpoint", job.checkpoint)
            _checkpoint(job, job.checkpoint)
        case Land():
            _new_table("--table", job.table, job.format)
            _folder("--checkpoint", job.checkpoint or _beside(job.table))
            if job.can_fail:
                _new_table("--quarantine", job.quarantine_path, job.format)
                _stored(job, job.quarantine_path)
            _stored(job, job.table)
            _checkpoint(job, job.checkpoint or _beside(job.table))
        case Aggregate():
            _folder("--checkpoint", job.checkpoint)
            _checkpoint(job, job.checkpoint)
            if job.table:
                _new_table("--table", job.table, job.format)
                _stored(job, job.table)
            if job.results:
                _file("--results", job.results)
                _stored(job, job.results)
        case Backfill():
            _new_table("--table", job.table, Format.DELTA)
            _stored(job, job.table)
        case Replay():
            _old_table(job.table, job.format)
            if job.progress_file:
                _file("--progress-file", job.progress_file)
                _stored(job, job.progress_file)
        case Quality():
            _old_table(job.table, job.format)
        case Dedupe():
            _old_table(job.table, Format.DELTA)
        case _:
            pass


def import_for(jobs: Iterable[Job]) -> None:
    """Import the modules that only some of these jobs need. Raises PipeFailed if one isn't installed."""
    if any(isinstance(job, Land) and job.is_iceberg for job in jobs):
        if find_spec("pyiceberg") is None:
            raise PipeFailed(f"--format iceberg needs pyiceberg: {GET_PYICEBERG}")
        import pyspark_nsq.tables.iceberg_tables  # noqa: F401


def _iceberg(job: Land) -> None:
    """Check that the catalog answers, and that the ends of existing tables account for their rows."""
    import_for([job])
    from nsqpipe.job_tables import tables_of
    from pyspark_nsq.tables.iceberg_tables import standing

    for table in tables_of(job)[: 2 if job.can_fail else 1]:
        standing(table)


def _beside(table: str) -> str:
    return f"{table.rstrip('/')}.checkpoint"


def _local(path: str) -> Path | None:
    """Return the path if it is on this machine, or None."""
    path = path.removeprefix("file://") if path.startswith("file:///") else path
    return None if "://" in path or path.startswith("hdfs:") else Path(path)


def _new_table(flag: str, path: str, format: Format) -> None:
    """Check a path for a table. An existing table must have this format."""
    _folder(flag, path)
    found = _format_at(path)
    if found not in (None, format):
        raise PipeFailed(
            f"{flag}: the table at {path} is {found}, not {format}: say --format {found}, or another folder"
        )


def _old_table(path: str, format: Format | None) -> None:
    if _local(path) is None:
        return
    found = _format_at(path)
    if found is None:
        raise PipeFailed(f"there is no table at {path}")
    if format not in (None, found):
        raise PipeFailed(f"--table: this needs a {format} table, and {path} is {found}")


def _format_at(path: str) -> Format | None:
    here = _local(path)
    if here is None:
        return None
    if (here / "_delta_log").is_dir():
        return Format.DELTA
    is_parquet = (here / "_spark_metadata").is_dir() or next(here.rglob("*.parquet"), None) is not None
    return Format.PARQUET if is_parquet else None


def _folder(flag: str, path: str) -> None:
    here = _local(path)
    if here is None:
        return
    try:
        check_folder(here)
    except PipeFailed as failed:
        raise PipeFailed(f"{flag} {failed}") from None


def _file(flag: str, path: str | Path) -> None:
    here = _local(str(path))
    if here is None:
        return
    if here.is_dir():
        raise PipeFailed(f"{flag} {path} is a folder, but should be a file")
    _folder(flag, str(here.parent))


def _stored(job: Stored, path: str) -> None:
    """Check that an object store can be reached and written to. Disks were checked before."""
    if _local(path) is None:
        from nsqpipe.job_places import place_for
        from pyspark_nsq.stores.storage import check_place

        check_place(place_for(job, path), to_write=True)


def _checkpoint(job: Land | Aggregate, path: str) -> None:
    if _local(path) is None:
        from nsqpipe.job_places import place_for
        from nsqpipe.session import known_conf
        from pyspark_nsq.stores.storage import check_checkpoint

        check_checkpoint(place_for(job, path), known_conf(dict(job.conf)))


# Bodies and rows


def _rules(path: Path) -> None:
    from nsqpipe.quality import load_rules

    load_rules(path)


def _decoder(job: Bodies) -> None:
    from nsqpipe.decoders import check_registry, decoder_of

    decoder_of(job)
    check_registry(job.registry)


# Nodes


@contextmanager
def _translated() -> Iterator[None]:
    """Translate a wrong option into wrong usage, and a node's error or silence into a failure."""
    from pyspark_nsq.errors import BadOption, NsqError

    try:
        yield
    except BadOption as error:
        raise WrongUsage(str(error)) from None
    except NsqError as error:
        if isinstance(error.__cause__, TimeoutError):
            return  # the job itself has more patience
        text = str(error)
        if _TCP_PORT in text:
            text = f"{text.split(' ')[0]} is a TCP port: the HTTP port is needed, 4151 of nsqd or 4161 of nsqlookupd"
        raise PipeFailed(text) from None


def _source(job: Land | Aggregate | Backfill | Bench) -> None:
    from pyspark_nsq.cluster import Cluster
    from pyspark_nsq.http import Http
    from pyspark_nsq.options import source_options

    with _translated():
        options = source_options(job.source.as_options())
    if not job.remote:
        _checkpoints_are_of(options, _checkpoints(job))
        if isinstance(job, Land):
            _rows_fit(job, options)
    cluster = Cluster(options, Http(replace(options.access, timeout=min(options.access.timeout, _PATIENCE))))

    def look() -> None:
        # Optional nodes are no reason to refuse the job, but we need at least one list of nodes.
        if options.lossless:
            cluster.heads(for_stream=isinstance(job, OfStreams))
        else:
            cluster.places(left_out=[])

    with _translated():
        _within(_PATIENCE, look)


def _sink(job: Replay) -> None:
    from pyspark_nsq.cluster import nodes
    from pyspark_nsq.http import Http
    from pyspark_nsq.options import sink_options
    from pyspark_nsq.source.queries import From

    sink = From(topics=(job.destination_topic,), lookupd=job.lookupd, nsqd=job.nsqd)
    with _translated():
        options = sink_options(sink.as_options())
    http = Http(replace(options.access, timeout=_PATIENCE))

    def look() -> None:
        if not nodes(options.where, http):
            raise PipeFailed(f"no nsqd is registered at {', '.join(job.lookupd)}")
        for address in options.where.nsqd:
            with http.request("GET", address, "/ping") as response:
                response.read()

    with _translated():
        _within(_PATIENCE, look)


# Existing tables


def _checkpoints(job: AtCluster) -> Sequence[str]:
    match job:
        case Land():
            mine = [job.checkpoint or _beside(job.table)]
            return [*mine, _beside(job.quarantine_path)] if job.can_fail else mine
        case Aggregate():
            return [f"{job.checkpoint}/results", f"{job.checkpoint}/table"]
        case _:
            return ()


def _checkpoints_are_of(options: SourceOptions, checkpoints: Sequence[str]) -> None:
    from pyspark_nsq.source.checkpoints import check_topics, checkpointed
    from pyspark_nsq.stores.storage import place_of

    for path in checkpoints:
        here = _local(path)
        if here is None or not (here / "offsets").is_dir() or not any((here / "offsets").iterdir()):
            continue
        _, sources = checkpointed(place_of(str(here)))
        check_topics({lane for lanes in sources for lane in lanes}, options, path)


def _rows_fit(job: Land, options: SourceOptions) -> None:
    """Check that the rows fit into existing tables, if their format has a schema."""
    if job.format is Format.PARQUET:
        return
    from nsqpipe.decoders import decoder_of
    from nsqpipe.job_tables import tables_of
    from pyspark_nsq.tables import landing

    good, bad = landing.schemas(options, decoder_of(job), drops_body=job.drop_body)
    table, quarantine = tables_of(job)
    if not job.select:  # only Spark knows the columns of a SELECT
        table.check_rows(good)
    if job.can_fail:
        quarantine.check_rows(bad)


def _within(seconds: float, look: Callable[[], object]) -> None:
    """Look, but don't wait longer than this: resolving a name has no timeout, so it takes a thread.

    `look` must not import anything. After the time is up its thread would still be importing, and we could see half of
    a module.
    """
    failed: list[Exception] = []

    def run() -> None:
        try:
            look()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="checks")
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
