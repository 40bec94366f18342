"""docs/reference/nsqpipe.md, from the tables of settings themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqpipe.cli import COMMANDS
from nsqpipe.command_line import ordered
from nsqpipe.metric_names import TABLES

if TYPE_CHECKING:
    from nsqpipe.settings import Job, Setting

ABOUT: Final = """\
# nsqpipe

<!-- Written by scripts/make-reference from the tables of settings. Change nsqpipe/jobs.py, not this page. -->

`nsqpipe` lands topics in tables and counts, and replays tables into topics, on Spark.
[The tutorial](../tutorials/spark-pipeline.md) shows it from the first message to a replay; it is built on [`format("nsq")`](spark.md).
It needs `pip install 'nsq-suite[spark]'` and Java 17 or later; `nsqpipe doctor` says what is missing.

| Exit status | When |
| --- | --- |
| 0 | everything is done, or a first SIGINT or SIGTERM ended a job without `--until-now` |
| 1 | it failed: the last line on standard error says why; `--log FILE` keeps what Spark logs, and the traceback |
| 2 | the command line or the file of `--config` is wrong: one line says what |
| 3 | `doctor` or `quality` found something, `lag` is above `--at-most`, nodes were missing for `lag` or `--until-now`, or `--until-now` was stopped by SIGINT or SIGTERM before it had read everything: run it again |

## Configuration

`nsqpipe --config FILE COMMAND` takes options from a TOML file with a table for each command; the command line overrides it.
A name that no command has is an error.
`nsqpipe --install-completion` lets your shell complete commands and options.

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

`nsqpipe run FILE` runs all jobs of a TOML file in one Spark session; [the how-to](../how-to/spark.md#several-tables-with-columns-masked-in-one-session) has an example.

| Section | Has |
| --- | --- |
| `[run]` | settings of `nsqpipe run`; the command line overrides them, and adds its `--conf` to theirs |
| `[defaults]` | settings of `land` and `aggregate`, for each job that has them and does not set them itself |
| `[storage]` | `NAME = "VALUE"` for the object store, for all jobs, like `--storage` |
| `[land.NAME]`, `[aggregate.NAME]` | one job: the settings of its command, except those of `[run]` and `--show` |

Keys are names of options, with `-` or `_`. An option that may be repeated takes a list or one value, and `NAME=VALUE` options also take a table.
Paths that do not begin with `/` are relative to where `nsqpipe` is started.
All mistakes in the file are reported at once, each in a line with its section. Then all jobs are checked at the same time, as each would be alone, and again each problem has its line. `--dry-run` ends there.
Two jobs may not share a table, quarantine, file of results or checkpoint. An aggregate's default checkpoint is `aggregate.checkpoint`, so only one may leave it out.

Streams are named after their job: `orders.land`, `orders.quarantine`, `per_minute.aggregate`, `per_minute.windows`. The progress, metrics and errors use these names.
A job fails with the first of its streams, or when rows are late and its `late` is `error`. Then all jobs stop (`--on-failure stop`), or the others go on until they end or are stopped (`--on-failure go-on`); a job that failed is not tried again. In both cases the exit status is 1, and each failed job has a line that says why.
At the end there is a line for each job. Exit status 3 means the same as for one job: `--until-now` has ended, but nodes were missing or it was stopped.
Killed and started again, each job goes on from its own checkpoint and table.

## Before it runs, while it runs, and at its end

What can be known without Spark is checked before Spark is started, in one line: whether nodes answer and have the topic, options and their spelling, files and folders, the table's format and columns, rules, schemas, a checkpoint of another topic.
A check refuses only what it has seen to be wrong; what takes longer than a second is left to the job.

On a terminal one line is rewritten each second: rows read, how fast, how many are behind and the time left, and the tasks of the batch that runs.
Elsewhere there is a line every ten seconds.
The last line says what has been done, even if a signal or a failure ended the job. `--quiet` turns all of this off:

```text
land: 100,001 rows read in 12.5 s, 100,000 landed in 2 files, 1 quarantined in 1 file, 0 late, 0 behind; table data/orders
```

Rows read are counted by offsets. Rows landed and quarantined are the rows by which the tables have grown; for a Parquet table only files are counted.

## Tables

A landed table has the source's columns `topic`, `node`, `sequence`, `id`, `timestamp`, `body`, and `date` and `hour` (UTC); it is partitioned by `topic`, `date`, `hour`.
With a decoder it also has `value`, with the fields of `--schema`. `--drop-body` leaves `body` out; such a table cannot be replayed.
Several tables may share a quarantine.
If a crash has left rows in the quarantine whose batch the table lacks, the next run needs the same decoder and rules, or another `--quarantine`.
The quarantine has the same columns without `value`, and `error`; [Decoders](decoders.md) has all causes.

A batch makes a file in each partition that it touches. So unless `--every` says how often there is a batch, `land` waits for 100,000 rows or 60 seconds (`--source-option minRowsPerTrigger=0` turns that off), and takes at most 2,000,000 rows or 1 GiB at once ([limited batches](spark.md#limited-batches)).

- **`delta`**: executors write Parquet, the driver commits with the `deltalake` package; no jar is needed. The commit that adds rows also stores how far the table goes in each lane, so nothing is added twice, even if the checkpoint is lost. Good rows and the quarantine come from one query. Any reader of Delta sees whole batches at every moment.
- **`iceberg`**: like `delta`, but with `pyiceberg` on the driver: a snapshot has the rows of a batch, and the same commit stores how far the table goes as properties, which outlive every snapshot. `--table` is `NAMESPACE.TABLE` in a [catalog](../how-to/spark.md#iceberg); of our commands, only `land`, `run` and `lag` support such tables.
- **`parquet`**: Spark's own file sink. Only Spark knows which files count (`_spark_metadata`): a tool that reads all files of the folder may see leftovers of a crash. `compact`, `dedupe` and `backfill` are for Delta only.

A message is identified by `node`, `topic`, `sequence` and `id`, never by its time.
`dedupe` rewrites a partition in the driver's memory: give the driver enough for an hour of messages (`--conf spark.driver.memory=8g`).
`backfill` stops where landing has come to in the table, and says how many messages of the range it has left to landing, so it may run beside a stream. It adds what the table lacked when it began: if another `backfill` or a `reland` has added rows since, or a landing into the table has begun, it is refused and has to be run again.

The checkpoint is `TABLE.checkpoint` by default (for Iceberg there is no default), and belongs to the table. If it does not, `land` says so in one line before Spark starts:

| What happened to the checkpoint | Delta, Iceberg | Parquet |
| --- | --- | --- |
| it was deleted | landing goes on where the table ends; `startingOffsets` applies to lanes that the table does not have | refused |
| it is older than the table | what the table has is not added again | refused, unless it is the one that filled the table |
| it is ahead of the table, as it belongs to another table, or the table was removed | refused | refused |
| it is for another topic | refused | refused |
| another job lands into the table at the same time | the job that comes second stops and says so; no row is duplicated | refused; with the same checkpoint Spark stops one of them |

A table in an [object store](../how-to/spark.md#object-stores) needs a `--checkpoint` on a disk. A table `[storage]` in the file of `--config` does for all commands what `--storage` does for one.
`land` refuses a Delta or Iceberg table that has rows but no ends of lanes, because something else has written it. `backfill` may add rows to a Delta table that has been landed into.
`land` also refuses an Iceberg table that was set back to a snapshot from before its ends ([how it can tell](../how-to/spark.md#iceberg)).
A Delta or Iceberg table gets fields that rows have and it lacks, nested ones too; older rows have null there, and jobs with the older schema go on.
A field of another type is refused at the start, by its name: `value.price: double is not string`.
A table and its checkpoint survive `kill -9` of anything. But neither Spark nor `deltalake` waits for the disk, so a power cut may damage what they wrote in the last seconds: then land from the logs again, or `backfill`.

`land` joins small files of its Delta tables by itself, and removes files that are not needed any more: [what can be set](../how-to/spark.md#before-it-runs-unattended).

## Columns that are selected

With `--select` a table has `topic`, `node`, `sequence`, `id`, `timestamp`, `date` and `hour` (and `gap`, if the source makes it), and then only what is selected, in SQL:

```text
--select "sha2(value.email, 256) as email, value.amount, value.amount * 2 as twice"
```

Columns to select from are `body`, `value` and its fields, and those that always stay. `value.*` means all fields; `*` is refused, as is a column without a name.
Each row is made from one message: there are no sums, windows or filters. A value that SQL cannot compute ends the job, so write `try_cast` where a value may not fit.
**Rows that fail keep their bodies**: the quarantine, and nothing else, has what was to be masked. Rules see columns as they were before the selection.
A Delta or Iceberg table stores that it was filled with `--select`. So `land` and `backfill` without `--select` refuse it, and so does `reland`, which cannot run SQL. After a schema is corrected, `backfill` with the same `--select` adds what the table lacks. `replay` needs a column `body`.

With `--select` or `--rules`, rows pass through Spark instead of being read and written in one Python task. That is just as exact, but slower.

## Rules

```toml
[[rule]]
name = "amount is positive"
check = "value.amount > 0"   # SQL about the columns; null counts as broken
then = "quarantine"          # or "count": only counted, in the metrics
```

## Results of aggregate

`--results` is a small JSON file, replaced as a whole after each batch.
A window that is still open is in it and grows; its `rate` is that of the part before `updated`. Percentiles are approximate, within a hundredth of their rank; those of gaps count the time between two messages that the same task has read.

```json
{"v": 1, "window_seconds": 60, "updated": "2026-03-01T12:00:03Z",
 "topics": {"orders": [{"start": "2026-03-01T11:59:00Z", "messages": 1200, "rate": 20.0, "bytes": 240000,
   "size_p50": 200, "size_p95": 210, "size_p99": 400, "gap_us_p50": 48000, "gap_us_p95": 61000, "gap_us_p99": 90000}]}}
```

The table of `--table` gets each window once, when the watermark has passed it.

A message that comes after the watermark has closed its window is *late*, and is dropped: for example, if its node was away for longer than the watermark. Limited batches do not make messages late.
Late messages are counted in `nsq_query_late_rows_total` and in the last line of the job; `--late error` ends the job with status 1 as soon as there are some.
Spark counts them after each task has summed up its rows of a window, so the number is 0 only if there was none, and otherwise is a lower bound.

## Replays

A replay is sent in slices, each by a Spark job: 200,000 messages, or two seconds' worth at `--rate`. If `--where` selects only few messages, neighbouring slices are joined.
The progress file says which slices are sent. It belongs to the table, the destination and the selected range: another replay needs another file.
If it is killed in the middle of a slice, the next run sends that slice again; with `--exactly-once` nsqd drops the part that it already has.

## Where it runs

| `--master` | |
| --- | --- |
| `local[*]`, the default | in this process; enough for a folder on this machine |
| `spark://host:7077`, `k8s://https://host:6443`, `yarn` | with `nsqpipe submit`: [recipes, and which of them were tested](../how-to/spark.md#on-a-cluster) |

`nsqpipe submit` sends our packages to the workers; what these import has to be installed there, and tables and checkpoints must lie where all workers can write.
It uses the interpreter that runs it, for the driver and, unless `spark.pyspark.python` or `PYSPARK_PYTHON` says otherwise, for the workers.

`--conf`, spark-submit and `spark-defaults.conf` override our defaults, which are:

| | on one machine | on a cluster |
| --- | --- | --- |
| `spark.sql.shuffle.partitions` | 4 | Spark's own, 200 |
| `spark.ui.enabled` | `false` | `true` |
| `spark.eventLog.enabled` | Spark's own, `false` | `true`, if `spark.eventLog.dir` is set |
| `spark.log.level` | `ERROR` | `ERROR` |
| `spark.sql.session.timeZone` | `UTC` | `UTC` |
| `spark.sql.streaming.stateStore.providerClass` | RocksDB's | RocksDB's |
| `spark.sql.redaction.options.regex` | also passwords, keys, decoders and properties of a catalog | the same |

`--remote sc://host:15002` uses a Spark Connect server on which the package is installed; a test starts one from what `pip` brings. This machine then needs no Java. Packages sent as artifacts cannot stream. Paths are those of the server, so tables are not tended from here: run `nsqpipe compact` where they are.

## Metrics

`--metrics-address=127.0.0.1:9108` serves `/metrics` for Prometheus: [these](metrics.md#streaming-queries), labelled with the query, `land`, `quarantine`, `aggregate` or `windows` (in `nsqpipe run` with the job's name and a dot before it); and for each table that is tended, labelled with the table:

| Metric | Kind | Meaning |
| --- | --- | --- |
"""


def page() -> str:
    parts = [ABOUT, *(f"| `{name}` | {kind} | {meaning} |\n" for name, (kind, meaning) in TABLES.items())]
    parts.append("\n## Commands\n")
    parts += [_section(name, job) for name, (job, _) in COMMANDS.items()]
    return "".join(parts)


def _section(name: str, job: type[Job]) -> str:
    rows = "".join(_row(it) for it in ordered(job))
    return f"\n### nsqpipe {name}\n\n{job.__doc__}\n\n| Option | Default | |\n| --- | --- | --- |\n{rows}"


def _row(it: Setting) -> str:
    default = "required" if it.is_required else f"`{it.shown_default()}`" if it.shown_default() else ""
    return f"| `{it.flag or it.name.upper()}` | {default} | {it.help.replace('|', '&#124;')} |\n"
