"""Reading topics: `format("nsq")` with `read` and `readStream`. Where to look:

    what Spark calls        batch_source.py, stream_source.py; schema.py for the columns
    how much of each lane   sharing.py decides, from what profiles.py knows
    nodes meanwhile         watch.py keeps on asking for them; announcing.py tells each nsqd how far a query has come
    in a task               reading.py (waits, goes on), rows.py (Arrow)
    where a query stands    checkpoints.py; queries.py for the options of a job

`ranges.py` is for the sink of tables, which reads the messages itself.
"""
