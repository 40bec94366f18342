"""Delta and Iceberg tables as a sink for Spark, each batch exactly once, and Delta's as a source: `format("nsqtable")`.

It doesn't need Delta for the JVM: executors write Parquet with pyarrow, and the driver commits with the `deltalake`
wheel, or with `pyiceberg`. Where to look:

    exactly once                ends.py decides; shares.py for a whole batch; lease.py and unnamed.py for its files
    landing messages            landing.py; appending.py commits to Delta, iceberg_commits.py to Iceberg
    Iceberg                     iceberg_destination.py in tasks, iceberg_tables.py for jobs; iceberg_target.py names a
                                table, iceberg_catalogs.py opens its catalog
    messages as rows for SQL    marks.py
    any other rows              sink.py (once for each batch), reading.py (the source)
    files                       files.py, statistics.py, schemas.py
    tables of jobs              table.py with table_name.py, iceberg_tables.py; standing.py (table and checkpoint)
    small files                 tending.py does what upkeep.py decides, by joining.py
    rows that failed            reland.py
"""
