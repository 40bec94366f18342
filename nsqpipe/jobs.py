"""The settings of each command, with their defaults and accepted values.

The docstring of a command's class is its help text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nsqpipe.settings import Job, argument, interval, listening, moment, pair, place, rest, setting
from pyspark_nsq.kinds import DeployMode, Format, Kind, Late, OnFailure
from pyspark_nsq.source.queries import From

_ICEBERG_NAME = re.compile(r"[^/\\.]+(\.[^/\\.]+)+")
_LAND_ALONE = "--format iceberg: only `land` supports Iceberg tables; read them with any tool for Iceberg"
NO_ADDRESS = "either --lookupd or --nsqd is needed: an HTTP address like 127.0.0.1:4161"


# Shared by several jobs


@dataclass(frozen=True, kw_only=True)
class OnSpark(Job):
    master: str = setting("Spark's master: local[*], spark://host:7077, yarn, k8s://...", "local[*]")
    remote: str = setting("a Spark Connect server instead, sc://host:15002", "")
    conf: tuple[tuple[str, str], ...] = setting(
        "NAME=VALUE for Spark itself; may be repeated", (), parse=pair, is_secret=True
    )
    log: Path | None = setting(
        "file for Spark's log, and for the traceback when the job fails (default: neither is kept)", None
    )
    quiet: bool = setting("show no progress", False)


@dataclass(frozen=True, kw_only=True)
class Printed(Job):
    as_json: bool = setting("print JSON, for programs", False, flag="--json")


@dataclass(frozen=True, kw_only=True)
class OfStreams(Job):
    until_now: bool = setting("read to the present end, then stop", False)
    metrics_address: str = setting("serve Prometheus metrics of the streams here, host:port", "", parse=listening)


@dataclass(frozen=True, kw_only=True)
class Streaming(OfStreams):
    every: str = setting("time between batches, as in '10 seconds' (default: as fast as possible)", "", parse=interval)


@dataclass(frozen=True, kw_only=True)
class AtCluster(Job):
    lookupd: tuple[str, ...] = setting("nsqlookupd's HTTP address, host:port; may be repeated", ())
    nsqd: tuple[str, ...] = setting("nsqd's HTTP address instead; may be repeated", ())

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if bool(self.lookupd) == bool(self.nsqd):
            yield NO_ADDRESS


@dataclass(frozen=True, kw_only=True)
class OfTopics(AtCluster):
    topic: tuple[str, ...] = setting("topic, or a pattern with * and ?; may be repeated")


@dataclass(frozen=True, kw_only=True)
class OfAllNodes(OfTopics):
    """Jobs that may require all nodes to be present."""

    require_all: bool = setting("start only if all nodes that nsqlookupd knows are present", False)
    nodes: int = setting("start only if at least this many nodes are present", 0, at_least=0)

    def required_nodes(self) -> dict[str, str]:
        """Return these settings as options of the source."""
        options = {}
        if self.require_all:
            options["requireAllNodes"] = "true"
        if self.nodes:
            options["requireNodes"] = str(self.nodes)
        return options


@dataclass(frozen=True, kw_only=True)
class Reading(OfAllNodes):
    """Jobs that read topics through the source."""

    source_option: tuple[tuple[str, str], ...] = setting(
        "NAME=VALUE for format('nsq'), as in startingOffsets=latest; may be repeated",
        (),
        parse=pair,
        is_secret=True,
    )

    @property
    def source(self) -> From:
        return From(topics=self.topic, lookupd=self.lookupd, nsqd=self.nsqd, options=self.source_options())

    def source_options(self) -> dict[str, str]:
        return dict(self.source_option) | self.required_nodes()


@dataclass(frozen=True, kw_only=True)
class Stored(Job):
    """Jobs whose tables and files may be in an object store."""

    storage: tuple[tuple[str, str], ...] = setting(
        "NAME=VALUE for an object store, as in endpoint=https://minio:9000; may be repeated",
        (),
        parse=pair,
        is_secret=True,
    )


@dataclass(frozen=True, kw_only=True)
class OfTable(Stored):
    table: str = setting("the table's folder")


@dataclass(frozen=True, kw_only=True)
class AsItIs(OfTable):
    format: Format | None = setting("delta or parquet (default: as the table is)", None)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.format is Format.ICEBERG:
            yield _LAND_ALONE


@dataclass(frozen=True, kw_only=True)
class Bodies(OfTable):
    """Jobs that decode bodies."""

    decoder: Kind = setting("format of bodies: raw, json, msgpack, avro or protobuf", Kind.RAW)
    schema: str = setting("fields of a body, as in 'user string, amount double'", "")
    avro_schema: str = setting("file with the schema that Avro bodies were written with", "")
    registry: str = setting("schema registry for Avro bodies, http://host:8081", "", is_secret=True)
    descriptors: str = setting("file that protoc --include_imports --descriptor_set_out writes, for Protobuf", "")
    message: str = setting("full name of the Protobuf message, as in shop.Order", "")
    confluent: bool = setting("each body begins with Confluent's header of five bytes", False)
    quarantine: str = setting("table for rows that fail (default: TABLE.quarantine)", "")

    @property
    def quarantine_path(self) -> str:
        return self.quarantine or f"{self.table.rstrip('/')}.quarantine"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.decoder is Kind.RAW:
            if self.schema or self.avro_schema:
                yield "--schema does not apply to raw bodies: choose a --decoder"
        elif not self.schema:
            yield f"--decoder {self.decoder} needs a --schema, as in --schema 'user string, amount double'"
        elif self.decoder is Kind.AVRO and not self.avro_schema and not self.registry:
            yield "--decoder avro needs --avro-schema, the file with the schema that bodies were written with, or --registry"


@dataclass(frozen=True, kw_only=True)
class Decoding(Bodies):
    rules: Path | None = setting("TOML file with rules that rows must follow", None)
    select: str = setting(
        "columns that the table gets instead of body and value, as SQL: 'sha2(value.email, 256) as email, value.amount'",
        "",
    )
    drop_body: bool = setting("keep only decoded values, not bodies; such a table cannot be replayed", False)

    @property
    def can_fail(self) -> bool:
        return self.decoder is not Kind.RAW or self.rules is not None

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.decoder is Kind.RAW and self.drop_body:
            yield "--drop-body would leave nothing of raw bodies: choose a --decoder"
        if self.select and self.drop_body:
            yield "--select already determines the table's columns: leave out --drop-body"


# One for each command


@dataclass(frozen=True, kw_only=True)
class Land(OnSpark, Streaming, Decoding, Reading):
    """Land topics in a table, by topic, date and hour, each message exactly once."""

    table: str = setting("the table's folder; Iceberg: its name, NAMESPACE.TABLE")
    quarantine: str = setting("table for rows that fail (default: TABLE.quarantine; Iceberg: TABLE_quarantine)", "")
    format: Format = setting("delta, parquet or iceberg", Format.DELTA)
    catalog: str = setting("Iceberg: the catalog's name in pyiceberg's configuration (default: its default)", "")
    catalog_uri: str = setting(
        "Iceberg: the catalog's address, http://rest:8181 or sqlite:////data/catalog.db", "", is_secret=True
    )
    catalog_option: tuple[tuple[str, str], ...] = setting(
        "NAME=VALUE for pyiceberg, as in warehouse=s3://lake; may be repeated", (), parse=pair, is_secret=True
    )
    checkpoint: str = setting(
        "folder for the stream's progress (default: TABLE.checkpoint; Iceberg has no default)", ""
    )
    no_upkeep: bool = setting("leave small files and leftovers to `nsqpipe compact`", False)
    closed_after: int = setting(
        "seconds without a new row after which the files of an hour are joined", 600, at_least=0
    )
    target_mb: int = setting("target size of a file, in megabytes", 128, at_least=1)
    vacuum_hours: int = setting(
        "remove files that no version of the last N hours needs; -1: remove none", 168, at_least=-1
    )
    show: bool = setting("at the end, print a sample and the traffic of each minute", False)

    @property
    def is_iceberg(self) -> bool:
        return self.format is Format.ICEBERG

    @property
    def quarantine_path(self) -> str:
        if self.is_iceberg:
            return self.quarantine or f"{self.table}_quarantine"  # a dot would make the table's name a namespace
        return super().quarantine_path

    @property
    def catalog_properties(self) -> dict[str, str]:
        return {**({"uri": self.catalog_uri} if self.catalog_uri else {}), **dict(self.catalog_option)}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.is_iceberg:
            if self.catalog or self.catalog_properties:
                yield "--catalog, --catalog-uri and --catalog-option need --format iceberg"
            return
        for flag, name in (("--table", self.table), ("--quarantine", self.quarantine_path)):
            if not _ICEBERG_NAME.fullmatch(name):
                yield f"{flag} {name}: an Iceberg table is named NAMESPACE.TABLE"
        if not self.checkpoint:
            yield "--format iceberg needs a --checkpoint: there is no table folder to put a default checkpoint beside"
        if self.remote:
            yield "--format iceberg: the driver commits, so it does not work with --remote"
        if self.show:
            yield "--format iceberg: --show reads the table with Spark, which cannot read Iceberg here"


@dataclass(frozen=True, kw_only=True)
class Aggregate(OnSpark, Streaming, Reading, Stored):
    """Compute counts, rates, bytes, and percentiles of sizes and gaps, for each topic and window."""

    results: str = setting("JSON file with the last windows, which nsqadmin charts", "")
    table: str = setting("table of closed windows", "")
    format: Format = setting("delta or parquet", Format.DELTA)
    checkpoint: str = setting("folder for the streams' progress", "aggregate.checkpoint")
    window: int = setting("length of a window, in seconds", 60, at_least=1)
    watermark: int = setting("seconds that a message may be late", 60, at_least=0)
    late: Late = setting("what to do about messages whose window is closed: count or error", Late.COUNT)
    keep: int = setting("number of windows per topic in the results", 1440, at_least=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.results and not self.table:
            yield "nothing to do: --results, --table or both are needed"
        if self.format is Format.ICEBERG:
            yield _LAND_ALONE


@dataclass(frozen=True, kw_only=True)
class Run(OnSpark, OfStreams):
    """Run all land and aggregate jobs of a TOML file in one Spark session. Options given here override its [run]."""

    file: Path = argument("TOML file with [land.NAME] and [aggregate.NAME]")
    master: str = setting("Spark's master (default: from the file, or local[*])", "")
    on_failure: OnFailure | None = setting(
        "what the other jobs do when one fails: stop or go-on (default: from the file, or stop)", None
    )
    dry_run: bool = setting("only check the file and everything that it names; do not start Spark", False)


@dataclass(frozen=True, kw_only=True)
class Replay(Printed, OnSpark, AsItIs, AtCluster):
    """Publish a range of a table to a topic again. You can limit its rate, and resume it after an interruption."""

    destination_topic: str = setting("topic to publish to")
    topic: str = setting("only messages that came from this topic", "")
    since: str = setting("only messages from this time on, as in 2026-03-01T12:00:00Z", "", parse=moment)
    until: str = setting("only messages before this time", "", parse=moment)
    where: str = setting("only messages that meet this SQL condition on the table's columns", "")
    rate: float = setting("messages a second, at most; 0: as fast as possible", 0.0, at_least=0)
    progress_file: str = setting("file for the replay's progress; the next run continues from there", "")
    name: str = setting("name of this replay, for --exactly-once (default: the progress file's path)", "")
    exactly_once: bool = setting("make nsqd remember messages, so that none is published twice; needs --nsqd", False)
    dry_run: bool = setting("only print what would be replayed", False)

    @property
    def what(self) -> str:
        """A description for checking that a progress file belongs to this replay."""
        chosen = f"topic={self.topic!r} since={self.since!r} until={self.until!r} where={self.where!r}"
        return f"{self.table} to {self.destination_topic}, {chosen}"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.exactly_once and not self.nsqd:
            yield "--exactly-once needs --nsqd: a slice that is sent again must go to the same nsqd"
        if self.exactly_once and not (self.name or self.progress_file):
            yield "--exactly-once needs a --progress-file or a --name, by which nsqd recognizes the replay"


@dataclass(frozen=True, kw_only=True)
class Compact(Printed, OfTable):
    """Join a Delta table's small files, without disturbing readers and writers."""

    target_mb: int = setting("target size of a file, in megabytes", 128, at_least=1)
    vacuum_hours: int | None = setting(
        "remove files that no version of the last N hours needs, and leftovers of crashes that are a day old",
        None,
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class Dedupe(Printed, OnSpark, OfTable):
    """Remove duplicate messages from a Delta table, for example if another writer has added landed rows again."""


@dataclass(frozen=True, kw_only=True)
class Reland(Printed, Bodies):
    """Decode quarantined rows with a corrected schema, and move those that fit into their table. Needs no Spark."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.decoder is Kind.RAW:
            yield "raw bodies never fail: choose the --decoder that the quarantined rows need"


@dataclass(frozen=True, kw_only=True)
class Backfill(Printed, OnSpark, Decoding, Reading):
    """Append missing messages of a time range to a Delta table from the logs, up to where landing is. Repeatable."""

    since: str = setting("only messages from this time on, as in 2026-03-01T12:00:00Z")  # the source checks it
    until: str = setting("only messages before this time")

    @property
    def source(self) -> From:
        bounds = {"startingTimestamp": self.since, "endingTimestamp": self.until}
        options = self.source_options() | bounds
        return From(topics=self.topic, lookupd=self.lookupd, nsqd=self.nsqd, options=options)


@dataclass(frozen=True, kw_only=True)
class Quality(Printed, OnSpark, AsItIs):
    """Count the rows of a table that break rules. Exit status 3 if there are any."""

    rules: Path = setting("TOML file with rules that rows must follow")


@dataclass(frozen=True, kw_only=True)
class Lag(Printed, OfAllNodes, Stored):
    """Count messages that a stream has not read yet, and those that are lost. Exit status 3 if nodes are missing."""

    checkpoint: str = setting("the stream's checkpoint, as in TABLE.checkpoint")
    at_most: int | None = setting("exit status 3 if the stream is behind by more messages than this", None, at_least=0)

    @property
    def source(self) -> From:
        options = {"requireRetention": "false"} | self.required_nodes()
        return From(topics=self.topic, lookupd=self.lookupd, nsqd=self.nsqd, options=options)


@dataclass(frozen=True, kw_only=True)
class OffsetsShow(Printed, Stored):
    """Show where the last planned batch of a checkpoint ends."""

    checkpoint: str = setting("the stream's checkpoint")


@dataclass(frozen=True, kw_only=True)
class OffsetsSet(Stored):
    """Make a new checkpoint that begins at these sequences. An existing checkpoint is never changed."""

    checkpoint: str = setting("a new folder")
    lane: tuple[tuple[str, int], ...] = setting(
        "LANE=SEQUENCE to begin with, as `offsets show` prints it; may be repeated", parse=place
    )


@dataclass(frozen=True, kw_only=True)
class Doctor(Printed, Stored):
    """Report what would keep a pipeline from running, one line each. Does not start Spark."""

    topic: tuple[str, ...] = setting("also look at this topic's logs; may be repeated", ())
    table: tuple[str, ...] = setting("also check that this table's location is writable; may be repeated", ())
    lookupd: tuple[str, ...] = setting("nsqlookupd's HTTP address, host:port; may be repeated", ())
    nsqd: tuple[str, ...] = setting("nsqd's HTTP address instead; may be repeated", ())

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.lookupd and self.nsqd:
            yield NO_ADDRESS


@dataclass(frozen=True, kw_only=True)
class Bench(Printed, OnSpark, Reading):
    """Measure how fast this Spark reads these topics: discarding them, to Parquet, and to windows."""


@dataclass(frozen=True, kw_only=True)
class Submit(Job):
    """Run a job with spark-submit: `nsqpipe submit --master spark://host:7077 -- land --topic clicks ...`."""

    master: str = setting("spark://host:7077, yarn, k8s://https://..., local[*]")
    deploy_mode: DeployMode = setting("client or cluster: where the driver runs", DeployMode.CLIENT)
    conf: tuple[tuple[str, str], ...] = setting(
        "NAME=VALUE for Spark itself; may be repeated", (), parse=pair, is_secret=True
    )
    dry_run: bool = setting("only print the command", False)
    job: tuple[str, ...] = rest("the job and its options, after --")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.job:
            yield "which job? For example: nsqpipe submit --master spark://host:7077 -- land --topic clicks ..."
