"""The command `nsqpipe`. What it does is in the modules beside; here are its words."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from common.version import suite_version
from nsqpipe.failures import PipeFailed, first_cause
from nsqpipe.progress import Progress
from nsqpipe.sources import From

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from nsqpipe.shape import Shape
    from nsqpipe.tables import Format, Table

FAILED, FOUND_SOMETHING = 1, 3
_OTHERS: Final = ("pyspark", "py4j", "deltalake", "_internal")  # whose errors are for the one who runs us

app = typer.Typer(
    name="nsqpipe",
    help="Topics into tables and counts, and back again, on Spark. The source reads nsqd's log by exact offsets; "
    "no channel is used.",
    epilog="Exit status: 0 done, or stopped as asked; 1 it failed, and one line says why; 2 the command line is wrong; "
    "3 doctor or quality found something, or lag is above --at-most.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
offsets_app = typer.Typer(
    rich_markup_mode=None,
    help="Where a checkpoint stands, and new checkpoints that begin where you say.",
    no_args_is_help=True,
)
app.add_typer(offsets_app, name="offsets")

Topics = Annotated[list[str], typer.Option("--topic", help="topic, or a pattern with * and ?; may be repeated")]
Lookupds = Annotated[
    list[str] | None, typer.Option("--lookupd", help="nsqlookupd's HTTP address, host:port; may be repeated")
]
Nsqds = Annotated[list[str] | None, typer.Option("--nsqd", help="nsqd's HTTP address instead; may be repeated")]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option("--source-option", help="NAME=VALUE for format('nsq'), as in startingOffsets=latest; may be repeated"),
]
Master = Annotated[str, typer.Option(help="Spark's master: local[*], spark://host:7077, yarn, k8s://...")]
Remote = Annotated[str, typer.Option(help="a Spark Connect server instead, sc://host:15002")]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="NAME=VALUE for Spark itself; may be repeated")]
Quiet = Annotated[bool, typer.Option("--quiet", help="show no progress")]
AsJson = Annotated[bool, typer.Option("--json", help="print an object, for programs")]
MetricsAddress = Annotated[str, typer.Option(help="serve Prometheus metrics of the streams here, host:port")]
Every = Annotated[str, typer.Option(help="a batch so often, as in '10 seconds'; empty: as fast as it goes")]
UntilNow = Annotated[bool, typer.Option("--until-now", help="take what is there, and end")]
TablePath = Annotated[str, typer.Option("--table", help="the table's folder")]
DecoderName = Annotated[str, typer.Option("--decoder", help="what bodies are: raw, json, msgpack or avro")]
Fields = Annotated[str, typer.Option("--schema", help="fields of a body, as in 'user string, amount double'")]
AvroSchema = Annotated[str, typer.Option("--avro-schema", help="file with the schema that Avro bodies were written by")]
RulesFile = Annotated[Path | None, typer.Option("--rules", help="TOML file with rules that rows must keep")]
DropBody = Annotated[
    bool, typer.Option("--drop-body", help="keep only what bodies mean; such a table cannot be replayed")
]
Quarantine = Annotated[str, typer.Option("--quarantine", help="table for rows that fail (default: TABLE.quarantine)")]
NewFormat = Annotated[str, typer.Option("--format", help="delta or parquet")]
TableFormat = Annotated[str, typer.Option("--format", help="delta or parquet (default: as the table is)")]


@app.callback()
def root(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with options: a table for each command, as in [land] topic = ['clicks']"),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="say which version this is", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"nsqpipe v{suite_version()}")
        raise typer.Exit
    if config is not None:
        context.default_map = _read_config(config, getattr(context.command, "commands", {}))


@app.command()
def land(
    topic: Topics,
    table: TablePath,
    lookupd: Lookupds = None,
    nsqd: Nsqds = None,
    source_option: SourceOptions = None,
    format: NewFormat = "delta",
    checkpoint: Annotated[str, typer.Option(help="where the stream keeps its place (default: TABLE.checkpoint)")] = "",
    decoder: DecoderName = "raw",
    schema: Fields = "",
    avro_schema: AvroSchema = "",
    rules: RulesFile = None,
    drop_body: DropBody = False,
    quarantine: Quarantine = "",
    show: Annotated[
        bool, typer.Option("--show", help="at the end, print a sample and the traffic of each minute")
    ] = False,
    every: Every = "",
    until_now: UntilNow = False,
    metrics_address: MetricsAddress = "",
    master: Master = "local[*]",
    remote: Remote = "",
    conf: Conf = None,
    quiet: Quiet = False,
) -> None:
    """Topics into a table, by topic, date and hour, each message exactly once."""
    with _running() as here:
        from nsqpipe.land import Land, start_landing
        from nsqpipe.summary import show_table
        from nsqpipe.tables import Table

        kind = _format(format)
        job = Land(
            source=_source(topic, lookupd, nsqd, source_option),
            table=Table(table, kind, checkpoint),
            quarantine=_quarantine(table, quarantine, kind),
            shape=_shape(decoder, schema, avro_schema, rules, drop_body),
            every=every,
            until_now=until_now,
        )
        spark = here.session("land", master, remote, conf)
        here.run(spark, lambda: start_landing(spark, job), quiet, metrics_address)
        if show:
            show_table(job.table.read(spark), sys.stdout)


@app.command()
def aggregate(
    topic: Topics,
    lookupd: Lookupds = None,
    nsqd: Nsqds = None,
    source_option: SourceOptions = None,
    results: Annotated[Path | None, typer.Option(help="JSON file with the last windows, which nsqadmin charts")] = None,
    table: Annotated[str, typer.Option(help="table of closed windows")] = "",
    format: NewFormat = "delta",
    checkpoint: Annotated[str, typer.Option(help="where the streams keep their place")] = "aggregate.checkpoint",
    window: Annotated[int, typer.Option(help="seconds of a window", min=1)] = 60,
    watermark: Annotated[int, typer.Option(help="seconds that a message may come late", min=0)] = 60,
    keep: Annotated[int, typer.Option(help="windows of each topic in the results", min=1)] = 1440,
    every: Every = "",
    until_now: UntilNow = False,
    metrics_address: MetricsAddress = "",
    master: Master = "local[*]",
    remote: Remote = "",
    conf: Conf = None,
    quiet: Quiet = False,
) -> None:
    """Counts, rates, bytes, and percentiles of sizes and distances, for each topic and window."""
    with _running() as here:
        from nsqpipe.aggregate import Aggregate, start_aggregating
        from nsqpipe.tables import Table

        job = Aggregate(
            source=_source(topic, lookupd, nsqd, source_option),
            window_seconds=window,
            watermark_seconds=watermark,
            checkpoint=checkpoint,
            results=results,
            keep=keep,
            table=Table(table, _format(format)) if table else None,
            every=every,
            until_now=until_now,
        )
        if job.results is None and job.table is None:
            raise PipeFailed("nothing to do: --results, --table or both are needed")
        spark = here.session("aggregate", master, remote, conf)
        here.run(spark, lambda: start_aggregating(spark, job), quiet, metrics_address)


@app.command()
def replay(
    table: TablePath,
    destination_topic: Annotated[str, typer.Option(help="topic to publish into")],
    lookupd: Lookupds = None,
    nsqd: Nsqds = None,
    topic: Annotated[str, typer.Option(help="only what came from this topic")] = "",
    since: Annotated[str, typer.Option(help="from this time on, as in 2026-03-01T12:00:00Z")] = "",
    until: Annotated[str, typer.Option(help="before this time")] = "",
    where: Annotated[str, typer.Option(help="SQL about the table's columns")] = "",
    rate: Annotated[float, typer.Option(help="messages a second, at most; 0: as fast as it goes", min=0)] = 0,
    progress_file: Annotated[Path | None, typer.Option(help="keeps how far it has come; it goes on there")] = None,
    name: Annotated[str, typer.Option(help="of this replay, for --exactly-once (default: the progress file's)")] = "",
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="nsqd remembers what it has; needs --nsqd")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be replayed")] = False,
    format: TableFormat = "",
    master: Master = "local[*]",
    remote: Remote = "",
    conf: Conf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """A range of a table back into a topic: slowly if asked, and where it was interrupted it goes on."""
    with _running() as here:
        from nsqpipe import replay as job
        from nsqpipe.tables import table_at

        if exactly_once and not (name or progress_file):
            raise PipeFailed("--exactly-once needs a --progress-file or a --name, by which nsqd knows the replay again")
        sink = From(topics=(destination_topic,), lookupd=tuple(lookupd or ()), nsqd=tuple(nsqd or ())).as_options()
        _need_one_of(lookupd, nsqd)
        named = name or (str(progress_file.resolve()) if progress_file else uuid4().hex)
        what = f"{table} to {destination_topic}, topic={topic!r} since={since!r} until={until!r} where={where!r}"
        place = job.Place.load(progress_file, named, what)
        rows = table_at(table, _given_format(format)).read(here.session("replay", master, remote, conf))
        chosen = job.chosen(rows, topic=topic, since=since, until=until, where=where)
        slices = job.plan(chosen, rate, place)
        total = sum(part.rows for part in slices)
        sent = 0
        if not dry_run:
            settings = job.Replay(sink=sink, rate=rate, exactly_once=exactly_once, name=named)
            sent = job.run(chosen, slices, settings, place, here.progress(quiet))
        if as_json:
            typer.echo(json.dumps({"messages": total, "sent": sent, "slices": len(slices)}))
        else:
            typer.echo(f"{total:,} messages in {len(slices)} slices; {sent:,} sent")


@app.command()
def compact(
    table: TablePath,
    target_mb: Annotated[int, typer.Option(help="megabytes that a file should have", min=1)] = 128,
    vacuum_hours: Annotated[
        int | None, typer.Option(help="remove files that no version of the last so many hours needs", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Joins a Delta table's small files. Readers and writers notice nothing."""
    with _running():
        from nsqpipe import maintenance
        from nsqpipe.tables import table_at

        keep = None if vacuum_hours is None else timedelta(hours=vacuum_hours)
        found = maintenance.compact(table_at(table), target_bytes=target_mb << 20, keep=keep)
        text = f"{found['removed']} files became {found['added']}; {found['vacuumed']} old ones removed"
        typer.echo(json.dumps(found) if as_json else text)


@app.command()
def dedupe(
    table: TablePath, master: Master = "local[*]", remote: Remote = "", conf: Conf = None, as_json: AsJson = False
) -> None:
    """Removes messages that a Delta table has twice, as after landing from two checkpoints."""
    with _running() as here:
        from nsqpipe import maintenance
        from nsqpipe.tables import table_at

        found = maintenance.dedupe(here.session("dedupe", master, remote, conf), table_at(table))
        text = f"{found['removed']:,} repeats removed from {found['partitions']} partitions"
        typer.echo(json.dumps(found) if as_json else text)


@app.command()
def backfill(
    topic: Topics,
    table: TablePath,
    since: Annotated[str, typer.Option(help="from this time on, as in 2026-03-01T12:00:00Z")],
    until: Annotated[str, typer.Option(help="before this time")],
    lookupd: Lookupds = None,
    nsqd: Nsqds = None,
    source_option: SourceOptions = None,
    decoder: DecoderName = "raw",
    schema: Fields = "",
    avro_schema: AvroSchema = "",
    rules: RulesFile = None,
    drop_body: DropBody = False,
    quarantine: Quarantine = "",
    master: Master = "local[*]",
    remote: Remote = "",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Appends what a Delta table lacks of a time range in the logs. The same range again adds nothing."""
    with _running() as here:
        from nsqpipe import maintenance
        from nsqpipe.tables import Format, Table

        source = _source(
            topic, lookupd, nsqd, [*(source_option or ()), f"startingTimestamp={since}", f"endingTimestamp={until}"]
        )
        found = maintenance.backfill(
            here.session("backfill", master, remote, conf),
            source,
            _shape(decoder, schema, avro_schema, rules, drop_body),
            Table(table, Format.DELTA),
            _quarantine(table, quarantine, Format.DELTA),
        )
        text = ", ".join(f"{count:,} {what}" for what, count in found.items())
        typer.echo(json.dumps(found) if as_json else text)


@app.command()
def quality(
    table: TablePath,
    rules: Annotated[Path, typer.Option(help="TOML file with rules that rows must keep")],
    format: TableFormat = "",
    master: Master = "local[*]",
    remote: Remote = "",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """How many rows of a table break which rule. Exit status 3 when there are any."""
    with _running() as here:
        from nsqpipe.quality import ROWS, broken_counts, load_rules
        from nsqpipe.tables import table_at

        known = load_rules(rules)
        spark = here.session("quality", master, remote, conf)
        counts = broken_counts(table_at(table, _given_format(format)).read(spark), known)
        if as_json:
            typer.echo(json.dumps(counts))
        else:
            for name, count in counts.items():
                typer.echo(f"{count:>12,}  {name}")
        if any(count for name, count in counts.items() if name != ROWS):
            raise typer.Exit(FOUND_SOMETHING)


@app.command()
def lag(
    topic: Topics,
    checkpoint: Annotated[str, typer.Option(help="the stream's checkpoint, as in TABLE.checkpoint")],
    lookupd: Lookupds = None,
    nsqd: Nsqds = None,
    at_most: Annotated[int | None, typer.Option(help="exit status 3 when more messages are behind", min=0)] = None,
    as_json: AsJson = False,
) -> None:
    """How many messages a stream has not read yet, and how many it never will. Starts no Spark."""
    with _running():
        from nsqpipe.lag import lags

        found = lags(_source(topic, lookupd, nsqd, ["requireRetention=false"]), checkpoint)
        behind, lost = sum(lane.behind for lane in found), sum(lane.lost for lane in found)
        if as_json:
            lanes = [
                {
                    "lane": lane.lane,
                    "reached": lane.reached,
                    "first": lane.first,
                    "next": lane.next,
                    "behind": lane.behind,
                }
                for lane in found
            ]
            typer.echo(json.dumps({"behind": behind, "lost": lost, "lanes": lanes}))
        else:
            for lane in found:
                typer.echo(
                    f"{lane.lane}  reached {_or_dash(lane.reached)} of {_or_dash(lane.next)}, {lane.behind:,} behind"
                )
            typer.echo(f"{behind:,} behind, {lost:,} lost")
        if at_most is not None and behind > at_most:
            raise typer.Exit(FOUND_SOMETHING)


@offsets_app.command("show")
def offsets_show(
    checkpoint: Annotated[str, typer.Option(help="the stream's checkpoint")], as_json: AsJson = False
) -> None:
    """Where the last planned batch of a checkpoint ends."""
    with _running():
        from nsqpipe.lanes import checkpointed

        number, sources = checkpointed(checkpoint)
        if as_json:
            typer.echo(json.dumps({"batch": number, "sources": [{"lanes": lanes} for lanes in sources]}))
            return
        typer.echo(f"batch {number}")
        for lanes in sources:
            for lane, place in sorted(lanes.items()):
                typer.echo(f"{lane} {place}")


@offsets_app.command("set")
def offsets_set(
    checkpoint: Annotated[str, typer.Option(help="a new folder")],
    lane: Annotated[list[str], typer.Option(help="LANE=SEQUENCE to begin with, as `offsets show` names it; repeat")],
) -> None:
    """Makes a new checkpoint that begins there. An existing one is never changed."""
    with _running():
        from nsqpipe.lag import set_offsets

        places: dict[str, int] = {}
        for text in lane:
            name, _, place = text.rpartition("=")
            if not name or not place.isdigit():
                raise PipeFailed(f"--lane: expected LANE=SEQUENCE, not {text!r}")
            places[name] = int(place)
        typer.echo(f"made {set_offsets(checkpoint, places)}")


@app.command()
def doctor(
    topic: Annotated[list[str] | None, typer.Option(help="also look at these topics' logs; repeat")] = None,
    lookupd: Lookupds = None,
    nsqd: Nsqds = None,
    as_json: AsJson = False,
) -> None:
    """What would keep a pipeline from running, one line each. Starts no Spark."""
    with _running():
        from nsqpipe.doctor import examine

        source = _source(topic or ["*"], lookupd, nsqd, None) if lookupd or nsqd else None
        findings = list(examine(source))
        if as_json:
            typer.echo(json.dumps([{"ok": found.is_good, "text": found.text} for found in findings]))
        else:
            for found in findings:
                typer.echo(f"{'ok ' if found.is_good else 'BAD'}  {found.text}")
        if not all(found.is_good for found in findings):
            raise typer.Exit(FOUND_SOMETHING)


@app.command()
def bench(
    topic: Topics,
    lookupd: Lookupds = None,
    nsqd: Nsqds = None,
    source_option: SourceOptions = None,
    master: Master = "local[*]",
    remote: Remote = "",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """How fast this Spark reads these topics, to nothing, to Parquet and to windows."""
    with _running() as here:
        from nsqpipe.bench import measure

        source = _source(topic, lookupd, nsqd, source_option)
        for found in measure(here.session("bench", master, remote, conf), source):
            if as_json:
                typer.echo(json.dumps({"name": found.name, "rows": found.rows, "seconds": found.seconds}))
            else:
                typer.echo(f"{found.name:30} {found.rows:>12,} rows {found.seconds:>8.2f} s {found.rate:>12,.0f}/s")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def submit(
    context: typer.Context,
    master: Annotated[str, typer.Option(help="spark://host:7077, yarn, k8s://https://..., local[*]")],
    deploy_mode: Annotated[str, typer.Option(help="client or cluster")] = "client",
    conf: Conf = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only print the command")] = False,
) -> None:
    """Runs a job by spark-submit: `nsqpipe submit --master spark://host:7077 -- land --topic clicks ...`."""
    with _running():
        from nsqpipe.submit import command_for, pack

        with TemporaryDirectory(prefix="nsqpipe-") as folder:
            archive = Path(folder) / "nsqpipe.zip"
            command = command_for(master, deploy_mode, conf or [], context.args, archive)
            if dry_run:
                typer.echo(shlex.join(command))
            else:
                pack(archive)
                raise typer.Exit(subprocess.run(command, check=False).returncode)


def main() -> None:
    app()


# What the commands share


class _Running:
    """One command, from its session to its last word."""

    def __init__(self) -> None:
        self._log: Path | None = None
        self._progress: Progress | None = None

    def session(self, name: str, master: str, remote: str, conf: Sequence[str] | None) -> SparkSession:
        from nsqpipe.session import open_session

        settings = _pairs(conf, "--conf")
        if not remote:
            handle, path = mkstemp(prefix="nsqpipe-", suffix=".log")
            os.close(handle)
            self._log = Path(path)
        return open_session(name, master=master, remote=remote, conf=settings, log=self._log)

    def run(
        self,
        spark: SparkSession,
        start: Callable[[], Sequence[StreamingQuery]],
        quiet: bool,
        metrics_address: str,
    ) -> None:
        from nsqpipe.metrics import serving
        from nsqpipe.running import Observer, run_queries

        observers: list[Observer] = []
        if not quiet:
            self._progress = Progress(sys.stderr)
            observers.append(self._progress.observe)
        with serving(spark, metrics_address):
            run_queries(spark, start, observers=observers)

    def progress(self, quiet: bool) -> Callable[[str], None]:
        if quiet:
            return lambda text: None
        self._progress = Progress(sys.stderr)
        return self._progress.say

    def close(self, *, failed: bool) -> None:
        if self._progress is not None:
            self._progress.close()
        if self._log is None:
            return
        if failed and self._log.stat().st_size:
            typer.echo(f"nsqpipe: what Spark says about it is in {self._log}", err=True)
        else:
            self._log.unlink()


@contextmanager
def _running() -> Iterator[_Running]:
    here = _Running()
    try:
        yield here
    except PipeFailed as failed:
        message = str(failed)
    except Exception as error:
        if not type(error).__module__.startswith(_OTHERS):
            here.close(failed=True)
            raise
        message = first_cause(error)
    except BaseException:  # an exit status, say
        here.close(failed=False)
        raise
    else:
        here.close(failed=False)
        return
    here.close(failed=True)
    typer.echo(f"nsqpipe: {message}", err=True)
    raise typer.Exit(FAILED)


def _source(
    topics: Sequence[str], lookupd: Sequence[str] | None, nsqd: Sequence[str] | None, options: Sequence[str] | None
) -> From:
    _need_one_of(lookupd, nsqd)
    return From(
        topics=tuple(topics),
        lookupd=tuple(lookupd or ()),
        nsqd=tuple(nsqd or ()),
        options=_pairs(options, "--source-option"),
    )


def _need_one_of(lookupd: Sequence[str] | None, nsqd: Sequence[str] | None) -> None:
    if bool(lookupd) == bool(nsqd):
        raise PipeFailed("either --lookupd or --nsqd is needed, the HTTP address, as in 127.0.0.1:4161")


def _shape(decoder: str, schema: str, avro_schema: str, rules: Path | None, drop_body: bool) -> Shape:
    from nsqpipe.decoders import Kind, make_decoder
    from nsqpipe.quality import load_rules
    from nsqpipe.shape import Shape

    kind = _choice(Kind, decoder, "--decoder")
    if drop_body and kind is Kind.RAW:
        raise PipeFailed("--drop-body would leave nothing of raw bodies: choose a --decoder")
    return Shape(
        decoder=make_decoder(kind, schema, avro_schema),
        rules=tuple(load_rules(rules)) if rules else (),
        drops_body=drop_body,
    )


def _quarantine(table: str, path: str, kind: Format) -> Table:
    from nsqpipe.tables import Table

    return Table(path or f"{table.rstrip('/')}.quarantine", kind)


def _pairs(words: Sequence[str] | None, flag: str) -> dict[str, str]:
    found = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise PipeFailed(f"{flag}: expected NAME=VALUE, not {word!r}")
        found[name] = value
    return found


def _read_config(path: Path, commands: Mapping[str, Any]) -> dict[str, Any]:
    """Names as on the command line, with - or _; a list where an option may be repeated."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}") from None
    return {name: _defaults(f"{path}: {name}", options, commands.get(name)) for name, options in found.items()}


def _defaults(where: str, options: object, command: Any) -> dict[str, Any]:
    if command is None or not isinstance(options, dict):
        raise typer.BadParameter(f"{where} is no command with options")
    nested = getattr(command, "commands", {})
    known = {parameter.name for parameter in command.params}
    found: dict[str, Any] = {}
    for spelled, value in options.items():
        name = spelled.replace("-", "_")
        if name in nested:
            found[name] = _defaults(f"{where}.{name}", value, nested[name])
        elif name in known:
            found[name] = value
        else:
            raise typer.BadParameter(f"{where} has no option {spelled}")
    return found


def _format(text: str) -> Format:
    from nsqpipe.tables import Format

    found: Format = _choice(Format, text, "--format")
    return found


def _given_format(text: str) -> Format | None:
    return _format(text) if text else None


def _choice(kinds: Any, text: str, flag: str) -> Any:
    try:
        return kinds(text)
    except ValueError:
        raise PipeFailed(f"{flag}: expected {', '.join(kind.value for kind in kinds)}, not {text!r}") from None


def _or_dash(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
