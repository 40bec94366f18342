"""The closed sets of words for options. They have their own module because their users are slow to import."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """The format of a table."""

    DELTA = "delta"
    PARQUET = "parquet"
    ICEBERG = "iceberg"


class Kind(StrEnum):
    """The format of bodies."""

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
    """What to do about messages that arrive after their window was closed."""

    COUNT = "count"
    ERROR = "error"


class OnFailure(StrEnum):
    """What to do with a pipeline's other jobs when one fails."""

    STOP = "stop"
    GO_ON = "go-on"
