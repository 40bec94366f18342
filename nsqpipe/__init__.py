"""The data pipeline: topics into tables and counts, and back again.

The command is `nsqpipe`; see docs/how-to/spark.md.
"""
