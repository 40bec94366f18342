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

Topics into tables and counts, and back again, on Spark.
[The tutorial](../tutorials/spark-pipeline.md) shows it from the first message to a replay; [`format("nsq")`](spark.md) is what it stands on.
It needs `pip install 'nsq-suite[spark]'` and Java 17 or later; `nsqpipe doctor` says what is missing.

| Exit status | When |
| --- | --- |
| 0 | all is done, or the first SIGINT or SIGTERM came to a job without `--until-now` |
| 1 | it failed: the last line on standard error says why; `--log FILE` keeps what Spark logs, and the traceback |
| 2 | the command line or the file of `--config` is wrong: one line says what |
| 3 | `doctor` or `quality` found something, `lag` is above `--at-most`, nodes were missing for `lag` or `--until-now`, or `--until-now` was stopped by SIGINT or SIGTERM before it had read all: run it again |

## Configuration

`nsqpipe --config FILE COMMAND` takes options from a TOML file, a table for each command; the command line stands above it.
A name that no command knows is an error.
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

`nsqpipe run FILE` does all jobs of a TOML file in one Spark session; [the how-to](../how-to/spark.md#several-tables-with-columns-masked-in-one-session) has an example.

| Section | Has |
| --- | --- |
| `[run]` | settings of `nsqpipe run`; the command line stands above them, and its `--conf` adds to theirs |
| `[defaults]` | settings of `land` and `aggregate`: they count for each job that knows them and does not say otherwise |
| `[storage]` | `NAME = "VALUE"` of the object store, for all jobs, as `--storage` |
| `[land.NAME]`, `[aggregate.NAME]` | one job: the settings of its command, but those of `[run]` and `--show` |

Keys are options' names, with `-` or `_`. Where an option may be repeated there is a list or one value, and for `NAME=VALUE` a table will do.
Paths that do not begin with `/` begin where `nsqpipe` is started.
All that is wrong is said at once, a line each with its section; then all jobs are checked at once, as they would be alone, and again each has its line. `--dry-run` ends there.
No two jobs may write to one table, quarantine, file of results or checkpoint. An aggregate has the checkpoint `aggregate.checkpoint` unless it says otherwise, so only one may leave it out.

Streams are named after their job: `orders.land`, `orders.quarantine`, `per_minute.aggregate`, `per_minute.windows`. So they are in the progress, in metrics, and where one fails.
A job fails with the first of its streams, or when rows are late and its `late` is `error`. Then all jobs stop (`--on-failure stop`), or the others go on until they end or are told to (`--on-failure go-on`); a job that failed is not tried again. Either way the exit status is 1, and a line for each says why.
The last words have a line for each job. Exit status 3 is as for one job: `--until-now` has ended without nodes that are missing.
Killed and started again, each job goes on from its own checkpoint and table.

## Before it runs, while it runs, and at its end

What can be known without Spark is checked before Spark is started, in one line: whether nodes answer and have the topic, options and their spelling, files and folders, the table's format and columns, rules, schemas, a checkpoint of another topic.
A check refuses what it has seen to be wrong; what takes longer than a second is left to the job.

On a terminal one line is rewritten each second: rows read, how fast, how many are behind and the time left, and the tasks of the batch that runs.
Elsewhere there is a line every ten seconds.
The last line says what has been done, also when a signal or a failure ended it; `--quiet` leaves all of it out:

```text
land: 100,001 rows read in 12.5 s, 100,000 landed in 2 files, 1 quarantined in 1 file, 0 late, 0 behind; table data/orders
```

Rows read are counted by offsets. Rows landed and quarantined are those by which the tables have grown; of a Parquet table only files are counted.

## Tables

A landed table has the source's columns `topic`, `node`, `sequence`, `id`, `timestamp`, `body`, and `date` and `hour` (UTC); it is partitioned by `topic`, `date`, `hour`.
With a decoder there is `value`, of the fields of `--schema`, too; `--drop-body` leaves `body` out, and then the table cannot be replayed.
Several tables may share a quarantine.
If a crash has left rows in the quarantine whose batch the table lacks, the next run needs the same decoder and rules, or another `--quarantine`.
The quarantine has the same columns without `value`, and `error`; [Decoders](decoders.md) has all causes.

A batch makes a file in each partition that it touches. So unless `--every` says how often there is to be one, `land` waits for 100,000 rows, or 60 seconds (`--source-option minRowsPerTrigger=0` does not), and takes at most 2,000,000 rows or 1 GiB at once ([limited batches](spark.md#limited-batches)).

- **`delta`**: executors write Parquet, the driver commits with the `deltalake` package; no jar is needed. How far the table goes in each lane lies in the commit that has the rows: what is there is not added again, even if the checkpoint is lost. Good rows and the quarantine come from one query. Any reader of Delta sees whole batches at every moment.
- **`iceberg`**: as `delta`, with `pyiceberg` on the driver: a snapshot has the rows of a batch, and the same commit sets the ends of its lanes as properties of the table, which outlive every snapshot. `--table` is `NAMESPACE.TABLE` in a [catalog](../how-to/spark.md#iceberg); of our commands, `land`, `run` and `lag` alone know such tables.
- **`parquet`**: Spark's own file sink. Only Spark knows which files count (`_spark_metadata`): whoever globs the folder may see leftovers of a crash. `compact`, `dedupe` and `backfill` are for Delta only.

What is the same message is known by `node`, `topic`, `sequence` and `id`, never by time.
`dedupe` rewrites a partition in the driver's memory: give it an hour's worth (`--conf spark.driver.memory=8g`).
`backfill` stops where a table ends that is landed into, says how many messages of the range it has left to landing, and so may run beside a stream. It compares with what is there when it begins: when another `backfill` or a `reland` has added rows since, or somebody has begun to land into the table, it is refused, and has to be run again.

The checkpoint is `TABLE.checkpoint` unless said otherwise (for Iceberg it has to be said), and belongs to the table. `land` says in one line, before Spark starts, when it does not:

| what became of the checkpoint | Delta, Iceberg | Parquet |
| --- | --- | --- |
| it was deleted | landing goes on where the table ends; `startingOffsets` counts for lanes that the table does not know | refused |
| it is older than the table | what is there is not added again | refused, unless it is the one that filled the table |
| it is another table's and ahead of this one, or the table was removed | refused | refused |
| it is of another topic | refused | refused |
| another job lands into the table at the same time | the one that comes second stops, and says so; no row is there twice | refused; with the same checkpoint Spark stops one of them |

A table in an [object store](../how-to/spark.md#object-stores) needs a `--checkpoint` on a disk. A table `[storage]` in the file of `--config` says once for all commands what `--storage` says for one.
A Delta or Iceberg table with rows that no landing has brought says nothing about lanes, and nothing is landed into it; `backfill` may add to a Delta table that has been landed into.
Nor is anything landed into an Iceberg table that was set back to a snapshot from before its ends; once the newer snapshot has expired, nobody can tell.
A Delta or Iceberg table gets the fields that rows bring and it lacks, nested ones too; older rows have null there, and jobs with the older schema go on.
A field of another type is refused at the start, by its name: `value.price: double is not string`.
A table and its checkpoint survive `kill -9` of anything. Neither Spark nor `deltalake` waits for the disk, so a power cut may cost the last seconds of them: then land from the logs anew, or `backfill`.

`land` joins small files of its Delta tables by itself, and removes those that nobody needs: [what there is to set](../how-to/spark.md#before-it-runs-unattended).

## Columns that are selected

With `--select` a table has `topic`, `node`, `sequence`, `id`, `timestamp`, `date` and `hour` (and `gap`, if the source makes it), and then only what is selected, as in SQL:

```text
--select "sha2(value.email, 256) as email, value.amount, value.amount * 2 as twice"
```

Columns to select from are `body`, `value` and its fields, and those that are kept. `value.*` is all fields; `*` is refused, as is a column without a name.
Each row is made of one message: there are no sums, windows or filters. What SQL cannot compute ends the job, so write `try_cast` where a value may not fit.
**Rows that fail keep their bodies**: the quarantine, and nothing else, has what was to be masked. Rules see columns as they were before.
A Delta or Iceberg table says of itself that SQL has made it. So `land` and `backfill` without `--select` refuse it, and `reland` does, which knows no SQL; after a schema is corrected, `backfill` with the same `--select` adds what the table lacks. `replay` needs a column `body`.

Where SQL has to see rows, for `--select` or `--rules`, they pass through Spark between marks, instead of being read and written in one Python task: just as exact, and slower. Without either nothing changes.

## Rules

```toml
[[rule]]
name = "amount is positive"
check = "value.amount > 0"   # SQL about the columns; null counts as broken
then = "quarantine"          # or "count": only counted, in the metrics
```

## Results of aggregate

`--results` is a small JSON file, replaced as a whole after each batch.
A window is in it while it is still open, and grows; `rate` is then that of the part before `updated`. Percentiles are approximate, within a hundredth of their rank, and of the distance between two messages that one task has read.

```json
{"v": 1, "window_seconds": 60, "updated": "2026-03-01T12:00:03Z",
 "topics": {"orders": [{"start": "2026-03-01T11:59:00Z", "messages": 1200, "rate": 20.0, "bytes": 240000,
   "size_p50": 200, "size_p95": 210, "size_p99": 400, "gap_us_p50": 48000, "gap_us_p95": 61000, "gap_us_p99": 90000}]}}
```

`--table` gets each window once, when the watermark has passed it.

A message that comes when the watermark has closed its window is *late*, and dropped: one of a node that was away for longer, say. Batches that are limited make none late.
Late ones are a number in `nsq_query_late_rows_total` and in the last words of the job; `--late error` ends it with status 1 as soon as there are some.
Spark counts them after each task has summed up its rows of a window, so the number is 0 only if there was none, and otherwise says at least how many.

## Replays

A replay is sent in slices, a Spark job each: 200,000 messages, or two seconds' worth at `--rate`; where `--where` leaves few of many, neighbours share one.
The progress file says which slices are sent. It belongs to the table, the destination and what was chosen: for another replay name another one.
Killed in the midst of a slice, the next run sends that slice again; with `--exactly-once` nsqd drops what it has of it.

## Where it runs

| `--master` | |
| --- | --- |
| `local[*]`, the default | in this process; all that a folder on this machine needs |
| `spark://host:7077`, `k8s://https://host:6443`, `yarn` | by `nsqpipe submit`: [recipes, and what of them was run](../how-to/spark.md#on-a-cluster) |

`nsqpipe submit` hands our packages to the workers; what these import has to be installed there, and tables and checkpoints must lie where all workers can write.
It uses the interpreter that runs it, for the driver and, unless `spark.pyspark.python` or `PYSPARK_PYTHON` says otherwise, for the workers.

What is said by `--conf`, by spark-submit or in `spark-defaults.conf` stands above our defaults, which are:

| | on one machine | on a cluster |
| --- | --- | --- |
| `spark.sql.shuffle.partitions` | 4 | Spark's own, 200 |
| `spark.ui.enabled` | `false` | `true` |
| `spark.eventLog.enabled` | Spark's own, `false` | `true`, if `spark.eventLog.dir` is said |
| `spark.log.level` | `ERROR` | `ERROR` |
| `spark.sql.session.timeZone` | `UTC` | `UTC` |
| `spark.sql.streaming.stateStore.providerClass` | RocksDB's | RocksDB's |
| `spark.sql.redaction.options.regex` | also passwords, keys, decoders and what a catalog is asked with | the same |

`--remote sc://host:15002` uses a Spark Connect server on which the package is installed; a test starts one from what `pip` brings. Here no Java is needed then. Packages sent as artifacts cannot stream. Paths are the server's then, so tables are not looked after from here: `nsqpipe compact` does it, where they are.

## Metrics

`--metrics-address=127.0.0.1:9108` serves `/metrics` for Prometheus: [these](metrics.md#streaming-queries), labelled with the query, `land`, `quarantine`, `aggregate` or `windows` (in `nsqpipe run` with the job's name and a dot before it); and of each table that is looked after, labelled with it:

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
