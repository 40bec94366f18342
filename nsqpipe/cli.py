"""The command `nsqpipe`. What it does is in the modules beside; here are its words."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from common.version import suite_version
from nsqpipe.failures import PipeFailed, first_cause
from nsqpipe.sources import From

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

FAILED, FOUND_SOMETHING = 1, 3

app = typer.Typer(
    name="nsqpipe",
    help="Topics into tables and counts, and back again, on Spark. The source reads nsqd's log by exact offsets; "
    "no channel is used.",
    epilog="Exit status: 0 done, or stopped as asked; 1 it failed, and one line says why; 2 the command line is wrong; "
    "3 doctor found something, or lag is above --at-most.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
offsets_app = typer.Typer(
    help="Where a checkpoint stands, and new checkpoints that begin where you say.", no_args_is_help=True
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
TableFormat = Annotated[str, typer.Option("--format", help="delta or parquet; empty: as the table is")]


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
        context.default_map = _read_config(config)


@app.command()
def land(
    topic: Topics,
    table: TablePath,
    lookupd: Lookupds = None,
    nsqd: Nsqds = None,
    source_option: SourceOptions = None,
    format: TableFormat = "delta",
    checkpoint: Annotated[str, typer.Option(help="where the stream keeps its place (default: TABLE.checkpoint)")] = "",
    decoder: Annotated[str, typer.Option(help="what bodies are: raw, json, msgpack or avro")] = "raw",
    schema: Annotated[str, typer.Option(help="fields of a body, as in 'user string, amount double'")] = "",
    avro_schema: Annotated[str, typer.Option(help="file with the schema that Avro bodies were written by")] = "",
    rules: Annotated[Path | None, typer.Option(help="TOML file with rules that rows must keep")] = None,
    quarantine: Annotated[str, typer.Option(help="table for rows that fail (default: TABLE.quarantine)")] = "",
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
    with _one_line_errors():
        from nsqpipe.decoders import Kind, make_decoder
        from nsqpipe.land import Land, start_landing
        from nsqpipe.quality import load_rules
        from nsqpipe.summary import show_table
        from nsqpipe.tables import Table

        kind = _format(format)
        job = Land(
            source=_source(topic, lookupd, nsqd, source_option),
            table=Table(table, kind, checkpoint),
            decoder=make_decoder(_choice(Kind, decoder, "--decoder"), schema, avro_schema),
            rules=tuple(load_rules(rules)) if rules else (),
            quarantine=Table(quarantine or f"{table.rstrip('/')}.quarantine", kind),
            every=every,
            until_now=until_now,
        )
        spark = _session("land", master, remote, conf)
        _run(start_landing(spark, job), quiet, metrics_address)
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
    format: TableFormat = "delta",
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
    with _one_line_errors():
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
        _run(start_aggregating(_session("aggregate", master, remote, conf), job), quiet, metrics_address)


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
    with _one_line_errors():
        from nsqpipe import replay as job
        from nsqpipe.tables import table_at

        if exactly_once and not (name or progress_file):
            raise PipeFailed("--exactly-once needs a --progress-file or a --name, by which nsqd knows the replay again")
        sink = From(topics=(destination_topic,), lookupd=tuple(lookupd or ()), nsqd=tuple(nsqd or ())).as_options()
        rows = table_at(table, _format(format) if format else None).read(_session("replay", master, remote, conf))
        chosen = job.chosen(rows, topic=topic, since=since, until=until, where=where)
        slices = job.plan(chosen, rate)
        total = sum(part.rows for part in slices)
        sent = 0
        if not dry_run:
            named = name or (str(progress_file.resolve()) if progress_file else uuid4().hex)
            settings = job.Replay(
                sink=sink, rate=rate, progress_file=progress_file, exactly_once=exactly_once, name=named
            )
            sent = job.run(
                chosen, slices, settings, lambda done, of: None if quiet else _say(f"{done:,}/{of:,} messages")
            )
        if as_json:
            typer.echo(json.dumps({"messages": total, "sent": sent, "slices": job.summary(slices)}))
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
    with _one_line_errors():
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
    with _one_line_errors():
        from nsqpipe import maintenance
        from nsqpipe.tables import table_at

        found = maintenance.dedupe(_session("dedupe", master, remote, conf), table_at(table))
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
    master: Master = "local[*]",
    remote: Remote = "",
    conf: Conf = None,
) -> None:
    """Appends what a Delta table lacks of a time range in the logs. The same range again adds nothing."""
    with _one_line_errors():
        from nsqpipe import maintenance
        from nsqpipe.tables import table_at

        source = _source(
            topic, lookupd, nsqd, [*(source_option or ()), f"startingTimestamp={since}", f"endingTimestamp={until}"]
        )
        spark = _session("backfill", master, remote, conf)
        added = maintenance.backfill(spark, source, table_at(table))
        typer.echo(f"{added:,} messages added")


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
    with _one_line_errors():
        from nsqpipe.quality import broken_counts, load_rules
        from nsqpipe.tables import table_at

        known = load_rules(rules)
        spark = _session("quality", master, remote, conf)
        counts = broken_counts(table_at(table, _format(format) if format else None).read(spark), known)
        if as_json:
            typer.echo(json.dumps(counts))
        else:
            for name, count in counts.items():
                typer.echo(f"{count:>12,}  {name}")
        if any(count for name, count in counts.items() if name != "rows"):
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
    with _one_line_errors():
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
    with _one_line_errors():
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
    with _one_line_errors():
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
    with _one_line_errors():
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


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def submit(
    context: typer.Context,
    master: Annotated[str, typer.Option(help="spark://host:7077, yarn, k8s://https://..., local[*]")],
    deploy_mode: Annotated[str, typer.Option(help="client or cluster")] = "client",
    conf: Conf = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only print the command")] = False,
) -> None:
    """Runs a job by spark-submit: `nsqpipe submit --master spark://host:7077 -- land --topic clicks ...`."""
    with _one_line_errors():
        from nsqpipe.submit import command_for, run

        command = command_for(master, deploy_mode, conf or [], context.args)
        if dry_run:
            typer.echo(" ".join(command))
        else:
            raise typer.Exit(run(command))


def main() -> None:
    app()


# What the commands share


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except PipeFailed as failed:
        typer.echo(f"nsqpipe: {failed}", err=True)
        raise typer.Exit(FAILED) from None
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j", "pyspark_nsq", "deltalake", "_internal")):
            raise
        typer.echo(f"nsqpipe: {first_cause(error)}", err=True)
        raise typer.Exit(FAILED) from None


def _session(name: str, master: str, remote: str, conf: Sequence[str] | None) -> SparkSession:
    from nsqpipe.session import open_session

    return open_session(name, master=master, remote=remote, conf=_pairs(conf, "--conf"))


def _run(queries: Sequence[StreamingQuery], quiet: bool, metrics_address: str) -> None:
    from nsqpipe.metrics import Metrics, serve
    from nsqpipe.running import run_queries

    metrics = Metrics()
    server = serve(metrics, metrics_address) if metrics_address else None
    try:
        run_queries(queries, quiet=quiet, observers=[metrics.observe])
    finally:
        if server is not None:
            server.shutdown()


def _source(
    topics: Sequence[str], lookupd: Sequence[str] | None, nsqd: Sequence[str] | None, options: Sequence[str] | None
) -> From:
    if bool(lookupd) == bool(nsqd):
        raise PipeFailed("either --lookupd or --nsqd is needed, the HTTP address, as in 127.0.0.1:4161")
    return From(
        topics=tuple(topics),
        lookupd=tuple(lookupd or ()),
        nsqd=tuple(nsqd or ()),
        options=_pairs(options, "--source-option"),
    )


def _pairs(words: Sequence[str] | None, flag: str) -> dict[str, str]:
    found = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise PipeFailed(f"{flag}: expected NAME=VALUE, not {word!r}")
        found[name] = value
    return found


def _read_config(path: Path) -> dict[str, Any]:
    """Names as on the command line, with - or _; a list where an option may be repeated."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(str(error)) from None
    return {command: _underscored(options) for command, options in found.items()}


def _underscored(options: object) -> object:
    if not isinstance(options, dict):
        return options
    return {re.sub("-", "_", name): _underscored(value) for name, value in options.items()}


def _format(text: str) -> Any:
    from nsqpipe.tables import Format

    return _choice(Format, text, "--format")


def _choice(kinds: Any, text: str, flag: str) -> Any:
    try:
        return kinds(text)
    except ValueError:
        raise PipeFailed(f"{flag}: expected {', '.join(kind.value for kind in kinds)}, not {text!r}") from None


def _say(text: str) -> None:
    ends = "" if sys.stderr.isatty() else "\n"
    sys.stderr.write(f"\r\x1b[2K{text}" if not ends else f"{text}\n")
    sys.stderr.flush()


def _or_dash(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
