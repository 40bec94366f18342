"""Parsers of bodies: bytes to plain values, without pyarrow and PySpark.

They need the libraries of the extra `spark` (msgspec, fastavro, protobuf), so nothing else in `nsqcommon` imports them.
"""
