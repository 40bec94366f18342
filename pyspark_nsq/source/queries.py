"""The source's options that all jobs share, for Spark's `format("nsq")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from nsqcommon.passwords import mask_passwords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LONGEST_PLACE: Final = 1024  # characters; nsqd's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class From:
    topics: tuple[str, ...]
    lookupd: tuple[str, ...] = ()
    nsqd: tuple[str, ...] = ()
    # Any other options of the source, which may contain its token.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def as_options(self) -> dict[str, str]:
        named = {"topic": self.topics, "lookupd": self.lookupd, "nsqd": self.nsqd}
        return {**{name: ",".join(words) for name, words in named.items() if words}, **self.options}


def with_defaults(source: From, options: Mapping[str, str]) -> From:
    """Set missing options. Case doesn't matter in their names."""
    given = {name.lower() for name in source.options}
    missing = {name: value for name, value in options.items() if name.lower() not in given}
    return replace(source, options={**missing, **source.options})


def reporting(source: From, name: str, into: str, kind: str) -> From:
    """Make the stream report its progress and target to nsqd, unless `readerName` is empty."""
    if any(option.lower() == "readername" and not text for option, text in source.options.items()):
        return source
    place = mask_passwords(into)
    if len(place) > _LONGEST_PLACE:
        place = f"…{place[1 - _LONGEST_PLACE :]}"
    return with_defaults(source, {"readerName": f"nsqpipe {name}", "readerInto": place, "readerFormat": kind})


def stream(spark: SparkSession, source: From) -> DataFrame:
    return spark.readStream.format("nsq").options(**source.as_options()).load()


def triggered(writer: DataStreamWriter, *, every: str, until_now: bool) -> DataStreamWriter:
    if until_now:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=every) if every else writer


def batch(spark: SparkSession, source: From) -> DataFrame:
    return spark.read.format("nsq").options(**source.as_options()).load()
