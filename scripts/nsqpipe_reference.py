"""docs/reference/nsqpipe.md, from the tables of settings themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from nsqpipe.cli import COMMANDS
from nsqpipe.command_line import ordered
from nsqpipe.metric_names import TABLES

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from nsqpipe.settings import Job, Setting

ABOUT: Final = """\
# nsqpipe

<!-- Written by scripts/make-reference from the tables of settings. Change nsqpipe/jobs.py, not this page. -->

`nsqpipe` lands topics in tables, counts them, and replays tables into topics, on Spark:

```text
nsqpipe land --lookupd 127.0.0.1:4161 --topic orders --table data/orders --decoder json --schema 'user string, amount double'
```

[The tutorial](../tutorials/spark-pipeline.md) goes from the first message to a replay, and [the how-to](../how-to/spark.md) has recipes.
You need `pip install 'nsq-suite[spark]'` and Java 17 or later; `nsqpipe doctor` says what is missing.

| Exit status | When |
| --- | --- |
| 0 | done, or a first SIGINT or SIGTERM ended a job without `--until-now` |
| 1 | failed: the last line on standard error says why; `--log FILE` keeps Spark's log and the traceback |
| 2 | the command line or the file of `--config` is wrong |
| 3 | `doctor` or `quality` found something, `lag` is above `--at-most`, nodes were missing, or `--until-now` was stopped before its end: run it again |

## Configuration

`nsqpipe --config FILE COMMAND` takes options from a TOML file with a table for each command; the command line overrides it.
`nsqpipe --install-completion` teaches your shell commands and options.

```toml
[land]
topic = ["orders", "click.*"]
lookupd = ["127.0.0.1:4161", "127.0.0.1:4261"]
table = "/data/tables/raw"
every = "10 seconds"

[offsets.show]
checkpoint = "/data/tables/raw.checkpoint"
```

## Several jobs in one file

`nsqpipe run FILE` runs all jobs of a TOML file in one Spark session ([example](../how-to/spark.md#several-tables-with-columns-masked-in-one-session)):

| Section | Has |
| --- | --- |
| `[run]` | settings of `nsqpipe run`; the command line overrides them, and adds its `--conf` |
| `[defaults]` | settings of `land` and `aggregate` for jobs that don't set them |
| `[storage]` | `NAME = "VALUE"` for the object store, like `--storage` |
| `[land.NAME]`, `[aggregate.NAME]` | one job: the settings of its command, except those of `[run]` and `--show` |

Keys are names of options, with `-` or `_`. A repeatable option takes a list or one value, and `NAME=VALUE` options also a table.
Relative paths start where you start `nsqpipe`. `--dry-run` only checks the file and all jobs.
Jobs may not share a table, quarantine, results file or checkpoint; only one aggregate may keep the default checkpoint.

Progress, metrics and errors name streams after their job: `orders.land`, `orders.quarantine`, `per_minute.aggregate`, `per_minute.windows`.
A job fails with the first of its streams, or when rows are late and its `late` is `error`.
Then all jobs stop (`--on-failure stop`), or the others go on (`--on-failure go-on`) and the failed one isn't retried; either way the exit status is 1.
Killed and restarted, each job goes on from its own checkpoint and table.

## Before, during and after a run

Before Spark starts, one line says what is wrong: nodes that don't answer or lack the topic, options, files, the table's format and columns, rules, schemas, the checkpoint.

While it runs, a line says rows read, rate, rows behind and time left. The last line says what was done, even after a signal or a failure; `--quiet` turns both off:

```text
land: 100,001 rows read in 12.5 s, 100,000 landed in 2 files, 1 quarantined in 1 file, 0 late, 0 behind; table data/orders
```

## Tables

A table has `topic`, `node`, `sequence`, `id`, `timestamp`, `body`, `date` and `hour` (UTC), and is partitioned by `topic`, `date`, `hour`.
With a decoder it also has `value` with the fields of `--schema`. `--drop-body` leaves `body` out; such a table can't be replayed.
The quarantine has the same columns with `error` instead of `value` ([causes](decoders.md#causes)). Tables may share one.
After a crash, run again with the same decoder and rules, or with another `--quarantine`.

A batch makes a file in each partition that it touches. Without `--every`, `land` waits for 100,000 rows or 60 seconds (`--source-option minRowsPerTrigger=0` turns that off), and takes at most 2,000,000 rows or 1 GiB ([limited batches](spark.md#limited-batches)).

- **`delta`**: executors write Parquet, the driver commits. Each commit also stores how far the table goes in each lane, so nothing is added twice, even without the checkpoint. Any reader sees whole batches.
- **`iceberg`**: the same with `pyiceberg`; how far the table goes is in properties, which outlive every snapshot. `--table` is `NAMESPACE.TABLE` in a [catalog](../how-to/spark.md#iceberg). Only `land`, `run` and `lag` support it.
- **`parquet`**: Spark's file sink. Only Spark knows which files count (`_spark_metadata`): other tools may see leftovers of a crash. No `compact`, `dedupe` and `backfill`.

The checkpoint is `TABLE.checkpoint` by default (Iceberg has no default) and belongs to the table. If it doesn't, `land` says so before Spark starts:

| The checkpoint | Delta, Iceberg | Parquet |
| --- | --- | --- |
| was deleted | landing goes on where the table ends; `startingOffsets` applies to lanes that the table lacks | refused |
| is older than the table | rows that the table has aren't added again | refused, unless it is the one that filled the table |
| is ahead of the table: it's another table's, or the table was removed | refused | refused |
| is for another topic | refused | refused |
| another job lands into the table at the same time | the second one stops and says so | refused; with the same checkpoint Spark stops one of them |

- A table in an [object store](../how-to/spark.md#object-stores) needs a `--checkpoint` on a disk. `[storage]` in the file of `--config` is `--storage` for all commands.
- `land` refuses a Delta or Iceberg table with rows but no lane ends, because something else wrote it, and an Iceberg table that was [set back](../how-to/spark.md#iceberg) to before its lane ends. `backfill` may add rows to a Delta table that has been landed into.
- New fields are added to a Delta or Iceberg table, nested ones too; older rows have null there. A field of another type is refused at the start: `value.price: double is not string`.
- `backfill` ends where landing has come to, so it may run beside a stream. If another `backfill` or a `reland` has added rows since it began, or a landing has begun, it's refused: run it again.
- `dedupe` identifies a message by `node`, `topic`, `sequence` and `id`, and rewrites a partition in the driver's memory: give the driver enough for an hour of messages (`--conf spark.driver.memory=8g`).
- A table and its checkpoint survive `kill -9` of anything. Spark and `deltalake` don't wait for the disk, so a power cut may damage the last seconds' files: then land from the logs again, or `backfill`.
- `land` joins the small files of its Delta tables and removes files that are no longer needed: [what you can set](../how-to/spark.md#before-it-runs-unattended).

## Columns that are selected

With `--select` a table has `topic`, `node`, `sequence`, `id`, `timestamp`, `date` and `hour` (and `gap`, if the source makes it), and then what you select, in SQL:

```text
--select "sha2(value.email, 256) as email, value.amount, value.amount * 2 as twice"
```

Select from `body`, `value` and its fields, and the columns that always stay. `value.*` means all fields; `*` and columns without a name are refused.
Each row is made from one message: no sums, windows or filters. A value that SQL can't compute ends the job, so write `try_cast` where it may not fit.
**Rows that fail keep their bodies**: the quarantine, and nothing else, has what you mask. Rules see columns as they were before the selection.
A Delta or Iceberg table remembers that it was filled with `--select`: `land` and `backfill` without it refuse the table, and so does `reland`. After you correct a schema, `backfill` with the same `--select`. `replay` needs a column `body`.

`--select` and `--rules` are slower, because rows then pass through Spark.

## Rules

```toml
[[rule]]
name = "amount is positive"
check = "value.amount > 0"   # SQL about the columns; null counts as broken
then = "quarantine"          # or "count": only counted, in the metrics
```

## Results of aggregate

`--results` is a JSON file, replaced after each batch:

```json
{"v": 1, "window_seconds": 60, "updated": "2026-03-01T12:00:03Z",
 "topics": {"orders": [{"start": "2026-03-01T11:59:00Z", "messages": 1200, "rate": 20.0, "bytes": 240000,
   "size_p50": 200, "size_p95": 210, "size_p99": 400, "gap_us_p50": 48000, "gap_us_p95": 61000, "gap_us_p99": 90000}]}}
```

The `rate` of an open window is that of the part before `updated`. Percentiles are within a hundredth of their rank; a gap is the time between two messages.
`--table` gets each window once, when the watermark has passed it.

A message that comes after the watermark closed its window, because its node was away for longer than `--watermark` for example, is *late* and is dropped.
`nsq_query_late_rows_total` and the job's last line count late messages; `--late error` ends the job with status 1. It is a lower bound.

## Replays

A replay is sent in slices of 200,000 messages, or two seconds' worth at `--rate`; if `--where` selects few messages, slices are joined.
The progress file belongs to the table, the destination and the selected range: another replay needs another file.
After a kill, the next run repeats the slice that was cut off; with `--exactly-once` nsqd drops the part that it already has.

## Where it runs

| `--master` | |
| --- | --- |
| `local[*]`, the default | in this process; enough for a folder on this machine |
| `spark://host:7077`, `k8s://https://host:6443`, `yarn` | with `nsqpipe submit`: [recipes, and which were tested](../how-to/spark.md#on-a-cluster) |

`nsqpipe submit` sends our packages to the workers; you install their dependencies, and all workers must be able to write to tables and checkpoints.
`spark.pyspark.python` or `PYSPARK_PYTHON` names another interpreter for the workers.

`--conf`, spark-submit and `spark-defaults.conf` override our defaults:

| | on one machine | on a cluster |
| --- | --- | --- |
| `spark.sql.shuffle.partitions` | 4 | Spark's own, 200 |
| `spark.ui.enabled` | `false` | `true` |
| `spark.eventLog.enabled` | Spark's own, `false` | `true`, if `spark.eventLog.dir` is set |
| `spark.log.level` | `ERROR` | `ERROR` |
| `spark.sql.session.timeZone` | `UTC` | `UTC` |
| `spark.sql.streaming.stateStore.providerClass` | RocksDB's | RocksDB's |
| `spark.sql.redaction.options.regex` | also passwords, keys, decoders and catalog properties | the same |

`--remote sc://host:15002` uses a Spark Connect server on which the package is installed; this machine then needs no Java. Packages sent as artifacts can't stream. Paths are the server's, so run `nsqpipe compact` there.

## Metrics

`--metrics-address=127.0.0.1:9108` serves `/metrics` for Prometheus: [these](metrics.md#streaming-queries), labelled with the query, `land`, `quarantine`, `aggregate` or `windows` (in `nsqpipe run` after the job's name and a dot), and for each table that `land` tends, labelled with the table:

| Metric | Kind | Meaning |
| --- | --- | --- |
"""
ABOUT_COMMANDS: Final = """
## Commands

An option is shown with its default, if it has one. These mean the same in several commands:
"""
# What this many commands say alike is said once, above all of them.
SHARED_BY: Final = 3
GROUPS: Final[Mapping[str, frozenset[str]]] = {
    "source": frozenset({"--lookupd", "--nsqd", "--require-all", "--nodes", "--source-option"}),
    "decoder": frozenset(
        {"--decoder", "--schema", "--avro-schema", "--registry", "--descriptors", "--message", "--confluent"}
    ),
    "Spark": frozenset({"--master", "--remote", "--conf", "--log", "--quiet"}),
}
_IN_GROUPS: Final = frozenset[str]().union(*GROUPS.values())


def page() -> str:
    jobs = [job for job, _ in COMMANDS.values()]
    counts = Counter(row_of(it) for job in jobs for it in ordered(job))
    shared = {row: it.flag for job in jobs for it in ordered(job) if counts[row := row_of(it)] >= SHARED_BY}
    parts = [ABOUT, *(f"| `{name}` | {kind} | {meaning} |\n" for name, (kind, meaning) in TABLES.items())]
    parts.append(ABOUT_COMMANDS)
    for name, flags in GROUPS.items():
        parts.append(_table(f"{name[0].upper()}{name[1:]} option", (row for row, it in shared.items() if it in flags)))
    parts.append(_table("Other option", (row for row, it in shared.items() if it not in _IN_GROUPS)))
    parts += [_section(name, job, shared) for name, (job, _) in COMMANDS.items()]
    return "".join(parts)


def _section(name: str, job: type[Job], shared: Container[str]) -> str:
    options = ordered(job)
    table = _table("Option", (row for it in options if (row := row_of(it)) not in shared))
    flags = [it.flag for it in options if row_of(it) in shared]
    groups = [name for name, members in GROUPS.items() if members <= {*flags}]
    named = frozenset[str]().union(*(GROUPS[it] for it in groups))
    also = [f"[{it} options](#commands)" for it in groups]
    also += [f"`{it}`" for it in flags if it not in named]
    return f"\n### nsqpipe {name}\n\n{job.__doc__}\n{table}" + (f"\nAlso {', '.join(also)}.\n" if also else "")


def _table(title: str, rows: Iterable[str]) -> str:
    text = "".join(rows)
    return f"\n| {title} | |\n| --- | --- |\n{text}" if text else ""


def row_of(it: Setting) -> str:
    name, default = it.flag or it.name.upper(), it.shown_default()
    shown = f"`{name}`, required" if it.is_required else f"`{name} {default}`" if default else f"`{name}`"
    return f"| {shown} | {it.help.replace('|', '&#124;')} |\n"
