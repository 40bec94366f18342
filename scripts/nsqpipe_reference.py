"""docs/reference/nsqpipe.md, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer

from nsqpipe.cli import app
from nsqpipe.metrics import TYPES

ABOUT: Final = """\
# nsqpipe

<!-- Written by scripts/make-reference from the command line. Change nsqpipe/cli.py, not this page. -->

Topics into tables and counts, and back again, on Spark.
[The tutorial](../tutorials/spark-pipeline.md) shows it from the first message to a replay; [`format("nsq")`](spark.md) is what it stands on.
It needs `pip install 'nsq-suite[spark]'` and Java 17 or later; `nsqpipe doctor` says what is missing.

| Exit status | When |
| --- | --- |
| 0 | all is done, or the first SIGINT or SIGTERM came |
| 1 | it failed: the last line on standard error says why, the line before where Spark's own log is |
| 2 | the command line or the file of `--config` is wrong |
| 3 | `doctor` or `quality` found something, or `lag` is above `--at-most` |

## Configuration

`nsqpipe --config FILE COMMAND` takes options from a TOML file, a table for each command; the command line stands above it.
A name that no command knows is an error.

```toml
[land]
topic = ["orders", "click.*"]
lookupd = ["127.0.0.1:4161", "127.0.0.1:4261"]
table = "/data/tables/raw"
every = "10 seconds"

[offsets.show]
checkpoint = "/data/tables/raw.checkpoint"
```

## Tables

A landed table has the source's columns `topic`, `node`, `sequence`, `id`, `timestamp`, `body`, and `date` and `hour` (UTC); it is partitioned by `topic`, `date`, `hour`.
With a decoder there is `value`, of the fields of `--schema`, too; `--drop-body` leaves `body` out, and then the table cannot be replayed.
The quarantine has the same columns without `value`, and `error`; [Decoders](decoders.md) has all causes.

- **`delta`**: executors write Parquet, the driver commits with the `deltalake` package; no jar is needed. A batch's number lies in the commit that has its rows, so a batch that Spark repeats is added once. Any reader of Delta sees whole batches at every moment.
- **`parquet`**: Spark's own file sink. Only Spark knows which files count (`_spark_metadata`): whoever globs the folder may see leftovers of a crash. `compact`, `dedupe` and `backfill` are for Delta only.

What is the same message is known by `node`, `topic`, `sequence` and `id`, never by time.
`dedupe` rewrites a partition in the driver's memory: give it an hour's worth (`--conf spark.driver.memory=8g`).
`backfill` compares with what is there when it begins: run it for a range that no stream is landing just then.

The checkpoint is `TABLE.checkpoint` unless said otherwise. It belongs to the table: delete or move both, or neither.
A Delta table gets the fields that rows bring and it lacks, nested ones too; older rows have null there, and jobs with the older schema go on.
A field of another type is refused at the start, by its name: `value.price: double is not string`.
A table and its checkpoint survive `kill -9` of anything. Neither Spark nor `deltalake` waits for the disk, so a power cut may cost the last seconds of them: then land from the logs anew, or `backfill`.

## Rules

```toml
[[rule]]
name = "amount is positive"
check = "value.amount > 0"   # SQL about the columns; null counts as broken
then = "quarantine"          # or "count": only counted, in the metrics
```

## Results of aggregate

`--results` is a small JSON file, replaced as a whole after each batch.
A window is in it while it is still open, and grows; percentiles are approximate, within a hundredth of their rank, and of the distance between two messages that one task has read.

```json
{"v": 1, "window_seconds": 60, "updated": "2026-03-01T12:00:03Z",
 "topics": {"orders": [{"start": "2026-03-01T11:59:00Z", "messages": 1200, "rate": 20.0, "bytes": 240000,
   "size_p50": 200, "size_p95": 210, "size_p99": 400, "gap_us_p50": 48000, "gap_us_p95": 61000, "gap_us_p99": 90000}]}}
```

`--table` gets each window once, when the watermark has passed it.

## Replays

A replay is sent in slices, a Spark job each: 200,000 messages, or two seconds' worth at `--rate`; where `--where` leaves few of many, neighbours share one.
The progress file says which slices are sent. It belongs to the table, the destination and what was chosen: for another replay name another one.
Killed in the midst of a slice, the next run sends that slice again; with `--exactly-once` nsqd drops what it has of it.

## Where it runs

| `--master` | |
| --- | --- |
| `local[*]`, the default | in this process; all that a folder on this machine needs |
| `spark://host:7077` | by `nsqpipe submit`; a test runs it with two workers |
| `k8s://https://host:6443`, `yarn` | by `nsqpipe submit`; not tested by us |

`nsqpipe submit` hands our packages to the workers; what these import (`pyarrow`, `deltalake`, `msgspec`, `msgpack`, `pandas`, `fastavro` for Avro, `protobuf`) has to be installed there, and tables and checkpoints must lie where all workers can write.
On Kubernetes, with an image that has them:

```text
nsqpipe submit --master k8s://https://host:6443 --deploy-mode client \\
  --conf spark.kubernetes.container.image=registry.example/spark-nsq:4.3.0 \\
  -- land --topic orders --lookupd nsqlookupd:4161 --table s3a://lake/orders
```

On YARN, with an archive of an environment (`venv-pack`):

```text
nsqpipe submit --master yarn --deploy-mode client --conf spark.archives=environment.tar.gz#environment \\
  --conf spark.executorEnv.PYSPARK_PYTHON=./environment/bin/python \\
  -- land --topic orders --lookupd nsqlookupd:4161 --table hdfs:///lake/orders --format parquet
```

`--remote sc://host:15002` uses a Spark Connect server on which the package is installed; a test starts one from what `pip` brings. Here no Java is needed then. Packages sent as artifacts cannot stream.

## Metrics

`--metrics-address=127.0.0.1:9108` serves `/metrics` for Prometheus:

| Metric | Type | |
| --- | --- | --- |
"""


def page() -> str:
    parts = [ABOUT, *(f"| `{name}` | {kind} | {text} |\n" for name, (kind, text) in TYPES.items())]
    parts.append("\n## Commands\n")
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        for full, found in _commands(name, command):
            parts.append(_section(full, found))
    return "".join(parts)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    nested = getattr(command, "commands", None)
    if nested is None:
        yield name, command
        return
    for inner, found in nested.items():
        yield from _commands(f"{name} {inner}", found)


def _section(name: str, command: Any) -> str:
    rows = "".join(_row(it) for it in command.params if not it.hidden)
    return f"\n### nsqpipe {name}\n\n{command.help}\n\n| Option | Default | |\n| --- | --- | --- |\n{rows}"


def _row(option: Any) -> str:
    default = "required" if option.required else f"`{option.default}`" if _says_something(option) else ""
    return f"| `{option.opts[0]}` | {default} | {option.help.replace('|', '&#124;')} |\n"


def _says_something(option: Any) -> bool:
    return option.default not in (None, "", False)
