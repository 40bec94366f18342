"""The closed sets of words that options take. They stand apart, as what uses them is slow to import."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """What a table is kept as."""

    DELTA = "delta"
    PARQUET = "parquet"
    ICEBERG = "iceberg"


class Kind(StrEnum):
    """What bodies are."""

    RAW = "raw"
    JSON = "json"
    MSGPACK = "msgpack"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class DeployMode(StrEnum):
    """Where spark-submit runs the driver."""

    CLIENT = "client"
    CLUSTER = "cluster"


class Late(StrEnum):
    """What becomes of a job when messages come after their window was closed."""

    COUNT = "count"
    ERROR = "error"


class OnFailure(StrEnum):
    """What becomes of a pipeline's other jobs when one fails."""

    STOP = "stop"
    GO_ON = "go-on"
