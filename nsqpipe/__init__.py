"""The data pipeline: topics into tables and counts, and back again.

The command is `nsqpipe`; see docs/how-to/spark.md. Where to look:

    a command             jobs.py (its settings), cli.py (the command itself)
    settings              settings.py, read by command_line.py and configuration.py (TOML); pipeline.py for `run`
    before Spark starts   checks.py, job_places.py and job_tables.py (named in options), decoders.py, doctor.py
    one run               entry.py (signals), runtime.py (one command), running.py (its streams), session.py (Spark)
    its output            progress.py (a line now and then), ledger.py (the last line), metrics.py
    land                  land.py, streams.py; processing of rows: shape.py, transforms.py, quality.py, selection.py
    aggregate             aggregate.py, late.py, results.py
    tables, by hand       maintenance.py (compact, dedupe, backfill), replay.py
    checkpoints           lag.py (lag, offsets)
    other machines        submit.py, worker.py and worker_python.py; a faster start: shared_classes.py, warm_up.py

All this uses the rooms of `pyspark_nsq`: `source` and `sink` of topics, `tables`, `bodies` and `stores`.
"""
