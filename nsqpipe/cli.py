"""The commands of `nsqpipe`, and how each of them runs its job.

Slow imports are inside the functions: Spark and pyarrow take a second, and `--help` or a wrong command line shouldn't
have to wait for that.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import typer

from nsqpipe import command_line, jobs
from nsqpipe.runtime import running
from pyspark_nsq.kinds import Format, OnFailure
from pyspark_nsq.source.queries import From

if TYPE_CHECKING:
    from nsqpipe.settings import Job
    from pyspark_nsq.stores.places import Place

FOUND_SOMETHING: Final = 3
ABOUT: Final = (
    "Lands topics in tables and counts, and replays tables into topics, on Spark. The source reads nsqd's log by exact "
    "offsets; no channel is used."
)
EPILOG: Final = (
    "Exit status: 0 done, or stopped as asked; 1 the command failed, and one line says why; 2 the command line is wrong; "
    "3 doctor or quality found something, lag is above --at-most, nodes were missing for lag or --until-now, or "
    "--until-now was stopped before it had read everything."
)
OFFSETS: Final = "Show a checkpoint's position, or make a new checkpoint at a given position."


def land(job: jobs.Land) -> None:
    with running(job) as run:
        run.check()
        from nsqpipe.streams import landing
        from nsqpipe.summary import show_table

        streams = landing(job)
        spark = run.session("land")
        run.queries(spark, [streams])
        if job.show and streams.table is not None:
            show_table(streams.table.read(spark), sys.stdout)


def aggregate(job: jobs.Aggregate) -> None:
    with running(job) as run:
        run.check()
        from nsqpipe.streams import aggregating

        streams = aggregating(job)
        run.queries(run.session("aggregate"), [streams])


def run_file(job: jobs.Run) -> None:
    with running(job):
        from nsqpipe.pipeline import read_pipeline

        pipeline = read_pipeline(job)
    with running(pipeline.run) as run:
        run.check()
        # Everything that the jobs' checks import: threads that import the same module at once may see half of it.
        import nsqpipe.session  # noqa: F401
        from nsqpipe.checks import check_work, import_for
        from nsqpipe.pipeline import for_each
        from nsqpipe.streams import streams_of

        import_for(pipeline.jobs.values())
        for_each(pipeline, lambda _, it: check_work(it))
        streams = for_each(pipeline, lambda name, it: streams_of(it, name))
        if job.dry_run:
            typer.echo(f"can run: {', '.join(map(pipeline.section, streams))}")
            return
        goes_on = pipeline.run.on_failure is OnFailure.GO_ON
        run.queries(run.session("run"), list(streams.values()), goes_on=goes_on)


def replay(job: jobs.Replay) -> None:
    with running(job) as run:
        spark = run.session("replay")
        from nsqpipe import replay as replaying
        from nsqpipe.job_places import place_for
        from nsqpipe.job_tables import table_for

        sink = From(topics=(job.destination_topic,), lookupd=job.lookupd, nsqd=job.nsqd).as_options()
        progress = place_for(job, job.progress_file) if job.progress_file else None
        name = job.name or (progress.absolute() if progress else uuid4().hex)
        reached = replaying.Reached.load(progress, name, job.what)
        rows = table_for(job, job.table, job.format).read(spark)
        chosen = replaying.chosen(rows, topic=job.topic, since=job.since, until=job.until, where=job.where)
        run.show("counting the messages to send")
        slices = replaying.plan(chosen, job.rate, reached)
        total = sum(part.rows for part in slices)
        sent = 0
        if not job.dry_run:
            settings = replaying.Replay(sink=sink, rate=job.rate, exactly_once=job.exactly_once, name=name)
            sent = replaying.run(chosen, slices, settings, reached, run.show)
        found = {"messages": total, "sent": sent, "slices": len(slices)}
        _print(job, found, f"{total:,} messages in {len(slices)} slices; {sent:,} sent")


def compact(job: jobs.Compact) -> None:
    with running(job):
        from nsqpipe import maintenance
        from nsqpipe.job_tables import table_for

        keep = None if job.vacuum_hours is None else timedelta(hours=job.vacuum_hours)
        found = maintenance.compact(table_for(job, job.table), target_bytes=job.target_mb << 20, keep=keep)
        _print(job, found, f"{found['removed']} files became {found['added']}; {found['vacuumed']} old files removed")


def dedupe(job: jobs.Dedupe) -> None:
    with running(job) as run:
        spark = run.session("dedupe")
        from nsqpipe import maintenance
        from nsqpipe.job_tables import table_for

        found = maintenance.dedupe(spark, table_for(job, job.table))
        _print(job, found, f"{found['removed']:,} repeats removed from {found['partitions']} partitions")


def reland(job: jobs.Reland) -> None:
    with running(job):
        from nsqpipe.decoders import decoder_of
        from nsqpipe.job_places import place_for
        from pyspark_nsq.tables import reland as relanding

        table, quarantine = place_for(job, job.table), place_for(job, job.quarantine_path)
        settings = relanding.Reland(table=table, quarantine=quarantine, decoder=decoder_of(job))
        found = relanding.reland(settings)
        text = (
            f"{found.landed:,} rows landed, {found.missing_fields:,} fields missing and {found.extra_fields:,} ignored; "
            f"{found.failing:,} still fail, {found.by_rule:,} broke a rule"
        )
        _print(job, asdict(found), text)


def backfill(job: jobs.Backfill) -> None:
    with running(job) as run:
        spark = run.session("backfill")
        from nsqpipe import maintenance
        from nsqpipe.job_tables import table_for
        from nsqpipe.streams import shape_of

        table, quarantine = (table_for(job, path, Format.DELTA) for path in (job.table, job.quarantine_path))
        found = maintenance.backfill(spark, job.source, shape_of(job), table, quarantine)
        _print(job, found, ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in found.items()))


def quality(job: jobs.Quality) -> None:
    with running(job) as run:
        spark = run.session("quality")
        from nsqpipe.job_tables import table_for
        from nsqpipe.quality import ROWS, broken_counts, load_rules

        counts = broken_counts(table_for(job, job.table, job.format).read(spark), load_rules(job.rules))
        _print(job, counts, "\n".join(f"{count:>12,}  {name}" for name, count in counts.items()))
        if any(count for name, count in counts.items() if name != ROWS):
            raise typer.Exit(FOUND_SOMETHING)


def lag(job: jobs.Lag) -> None:
    with running(job):
        from nsqpipe.job_places import place_for
        from nsqpipe.lag import lags

        found = lags(job.source, place_for(job, job.checkpoint))
        lanes = [
            {"lane": it.lane, "reached": it.reached, "first": it.first, "next": it.next, "behind": it.behind}
            for it in found.lanes
        ]
        lines = [
            f"{it.lane}  reached {_or_dash(it.reached)} of {_or_dash(it.next)}, "
            f"{'an unknown number' if it.behind is None else f'{it.behind:,}'} behind"
            for it in found.lanes
        ]
        least = "at least " if found.missing else ""
        lines.append(f"{least}{found.behind:,} behind, {least}{found.lost:,} lost")
        told = {"behind": found.behind, "lost": found.lost, "missing": dict(found.missing), "lanes": lanes}
        _print(job, told, "\n".join(lines))
        if found.missing:
            typer.echo(f"nsqpipe: messages on these nodes were not read: {'; '.join(found.missing.values())}", err=True)
        if found.missing or (job.at_most is not None and found.behind > job.at_most):
            raise typer.Exit(FOUND_SOMETHING)


def offsets_show(job: jobs.OffsetsShow) -> None:
    with running(job):
        from nsqpipe.job_places import place_for
        from pyspark_nsq.source.checkpoints import checkpointed

        number, sources = checkpointed(place_for(job, job.checkpoint))
        lines = [f"{lane} {place}" for lanes in sources for lane, place in sorted(lanes.items())]
        found = {"batch": number, "sources": [{"lanes": lanes} for lanes in sources]}
        _print(job, found, "\n".join([f"batch {number}", *lines]))


def offsets_set(job: jobs.OffsetsSet) -> None:
    with running(job):
        from nsqpipe.job_places import place_for
        from nsqpipe.lag import set_offsets

        set_offsets(place_for(job, job.checkpoint), dict(job.lane))
        typer.echo(f"made {job.checkpoint}")


def doctor(job: jobs.Doctor) -> None:
    with running(job):
        from nsqpipe.doctor import examine

        source = From(topics=job.topic or ("*",), lookupd=job.lookupd, nsqd=job.nsqd)
        findings = list(examine(source if job.lookupd or job.nsqd else None, _places(job)))
        lines = [f"{'ok ' if it.is_good else 'BAD'}  {it.text}" for it in findings]
        _print(job, [{"ok": it.is_good, "text": it.text} for it in findings], "\n".join(lines))
        if not all(it.is_good for it in findings):
            raise typer.Exit(FOUND_SOMETHING)


def bench(job: jobs.Bench) -> None:
    with running(job) as run:
        spark = run.session("bench")
        from nsqpipe.bench import measure

        for it in measure(spark, job.source):
            text = f"{it.name:30} {it.rows:>12,} rows {it.seconds:>8.2f} s {it.rate:>12,.0f}/s"
            _print(job, {"name": it.name, "rows": it.rows, "seconds": it.seconds}, text)


def submit(job: jobs.Submit) -> None:
    with running(job):
        from nsqpipe.submit import command_for, environment, pack

        with TemporaryDirectory(prefix="nsqpipe-") as folder:
            archive = Path(folder) / "nsqpipe.zip"
            command = command_for(job, archive)
            if job.dry_run:
                typer.echo(shlex.join(command))
                return
            pack(archive)
            raise typer.Exit(subprocess.run(command, env=environment(job, archive), check=False).returncode)


Runner = Callable[[Any], None]
COMMANDS: Final[Mapping[str, tuple[type[Job], Runner]]] = {
    "land": (jobs.Land, land),
    "aggregate": (jobs.Aggregate, aggregate),
    "run": (jobs.Run, run_file),
    "replay": (jobs.Replay, replay),
    "compact": (jobs.Compact, compact),
    "dedupe": (jobs.Dedupe, dedupe),
    "reland": (jobs.Reland, reland),
    "backfill": (jobs.Backfill, backfill),
    "quality": (jobs.Quality, quality),
    "lag": (jobs.Lag, lag),
    "offsets show": (jobs.OffsetsShow, offsets_show),
    "offsets set": (jobs.OffsetsSet, offsets_set),
    "doctor": (jobs.Doctor, doctor),
    "bench": (jobs.Bench, bench),
    "submit": (jobs.Submit, submit),
}
app: Final = command_line.root(ABOUT, EPILOG, {"offsets": OFFSETS}, COMMANDS)


def _places(job: jobs.Doctor) -> list[Place]:
    if not job.table:
        return []  # doctor can then report a missing pyarrow, which the import below needs
    from nsqpipe.job_places import place_for

    return [place_for(job, path) for path in job.table]


def _print(job: jobs.Printed, found: object, text: str) -> None:
    typer.echo(json.dumps(found) if job.as_json else text)


def _or_dash(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
