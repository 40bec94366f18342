"""Reading topics: `format("nsq")` with `read` and `readStream`. Where to look:

    called by Spark         batch_source.py, stream_source.py; schema.py for the columns
    size of a batch         sharing.py decides, with data from profiles.py
    between batches         watch.py keeps polling the nodes; announcing.py reports a query's progress to each nsqd
    in a task               reading.py (waits, retries), rows.py (Arrow)
    progress of a query     checkpoints.py; queries.py for the options of a job

`ranges.py` is for the sink of tables, which reads the messages itself.
"""
