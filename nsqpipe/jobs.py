"""What each command can be told: all settings, their defaults, and what their words may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nsqpipe.kinds import DeployMode, Format, Kind, Late, OnFailure
from nsqpipe.settings import Job, argument, interval, listening, moment, pair, place, rest, setting
from nsqpipe.sources import From

_ICEBERG_NAME = re.compile(r"[^/\\.]+(\.[^/\\.]+)+")
_LAND_ALONE = "--format iceberg: of our jobs `land` alone knows Iceberg tables; what reads Iceberg reads them"
NO_ADDRESS = "either --lookupd or --nsqd is needed, the HTTP address, as in 127.0.0.1:4161"


# Shared by several jobs


@dataclass(frozen=True, kw_only=True)
class OnSpark(Job):
    master: str = setting("Spark's master: local[*], spark://host:7077, yarn, k8s://...", "local[*]")
    remote: str = setting("a Spark Connect server instead, sc://host:15002", "")
    conf: tuple[tuple[str, str], ...] = setting(
        "NAME=VALUE for Spark itself; may be repeated", (), parse=pair, is_secret=True
    )
    log: Path | None = setting(
        "file that keeps what Spark logs, and the traceback when the job fails (default: neither is kept)", None
    )
    quiet: bool = setting("show no progress", False)


@dataclass(frozen=True, kw_only=True)
class Printed(Job):
    as_json: bool = setting("print an object, for programs", False, flag="--json")


@dataclass(frozen=True, kw_only=True)
class OfStreams(Job):
    until_now: bool = setting("take what is there, and end", False)
    metrics_address: str = setting("serve Prometheus metrics of the streams here, host:port", "", parse=listening)


@dataclass(frozen=True, kw_only=True)
class Streaming(OfStreams):
    every: str = setting("a batch so often, as in '10 seconds'; empty: as fast as it goes", "", parse=interval)


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
    """Jobs that may insist on nodes."""

    require_all: bool = setting("do not start while a node is missing that nsqlookupd knows", False)
    nodes: int = setting("do not start while fewer nodes than this are there", 0, at_least=0)

    def required_nodes(self) -> dict[str, str]:
        """As options of the source."""
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
    """Jobs whose tables and files may lie in an object store."""

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
    """Jobs that say what bodies mean."""

    decoder: Kind = setting("what bodies are: raw, json, msgpack, avro or protobuf", Kind.RAW)
    schema: str = setting("fields of a body, as in 'user string, amount double'", "")
    avro_schema: str = setting("file with the schema that Avro bodies were written by", "")
    registry: str = setting("schema registry by which Avro bodies are read, http://host:8081", "", is_secret=True)
    descriptors: str = setting("file that protoc --include_imports --descriptor_set_out writes, for Protobuf", "")
    message: str = setting("full name of the Protobuf message, as in shop.Order", "")
    confluent: bool = setting("Confluent's five bytes come before each body", False)
    quarantine: str = setting("table for rows that fail (default: TABLE.quarantine)", "")

    @property
    def quarantine_path(self) -> str:
        return self.quarantine or f"{self.table.rstrip('/')}.quarantine"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.decoder is Kind.RAW:
            if self.schema or self.avro_schema:
                yield "--schema says nothing about raw bodies: choose a --decoder"
        elif not self.schema:
            yield f"--decoder {self.decoder} needs a --schema, as in --schema 'user string, amount double'"
        elif self.decoder is Kind.AVRO and not self.avro_schema and not self.registry:
            yield "--decoder avro needs --avro-schema, the file with the schema that bodies were written by, or --registry"


@dataclass(frozen=True, kw_only=True)
class Decoding(Bodies):
    rules: Path | None = setting("TOML file with rules that rows must keep", None)
    select: str = setting(
        "what the table gets beside where a message came from, as SQL: 'sha2(value.email, 256) as email, value.amount'",
        "",
    )
    drop_body: bool = setting("keep only what bodies mean; such a table cannot be replayed", False)

    @property
    def can_fail(self) -> bool:
        return self.decoder is not Kind.RAW or self.rules is not None

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.decoder is Kind.RAW and self.drop_body:
            yield "--drop-body would leave nothing of raw bodies: choose a --decoder"
        if self.select and self.drop_body:
            yield "--select says already what the table gets: leave --drop-body out"


# One for each command


@dataclass(frozen=True, kw_only=True)
class Land(OnSpark, Streaming, Decoding, Reading):
    """Topics into a table, by topic, date and hour, each message exactly once."""

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
        "where the stream keeps its place (default: TABLE.checkpoint; Iceberg has no default)", ""
    )
    no_upkeep: bool = setting("leave small files and leftovers to `nsqpipe compact`", False)
    closed_after: int = setting(
        "seconds without a new row after which the files of an hour are joined", 600, at_least=0
    )
    target_mb: int = setting("megabytes that a file should have", 128, at_least=1)
    vacuum_hours: int = setting(
        "remove files that no version of the last so many hours needs; -1: remove none", 168, at_least=-1
    )
    show: bool = setting("at the end, print a sample and the traffic of each minute", False)

    @property
    def is_iceberg(self) -> bool:
        return self.format is Format.ICEBERG

    @property
    def quarantine_path(self) -> str:
        if self.is_iceberg:
            return self.quarantine or f"{self.table}_quarantine"  # a point would begin another namespace
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
            yield "--format iceberg: the driver commits, so it does not go with --remote"
        if self.show:
            yield "--format iceberg: --show reads the table by Spark, which has nothing for Iceberg here"


@dataclass(frozen=True, kw_only=True)
class Aggregate(OnSpark, Streaming, Reading, Stored):
    """Counts, rates, bytes, and percentiles of sizes and distances, for each topic and window."""

    results: str = setting("JSON file with the last windows, which nsqadmin charts", "")
    table: str = setting("table of closed windows", "")
    format: Format = setting("delta or parquet", Format.DELTA)
    checkpoint: str = setting("where the streams keep their place", "aggregate.checkpoint")
    window: int = setting("seconds of a window", 60, at_least=1)
    watermark: int = setting("seconds that a message may come late", 60, at_least=0)
    late: Late = setting("messages whose window is closed already: count or error", Late.COUNT)
    keep: int = setting("windows of each topic in the results", 1440, at_least=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.results and not self.table:
            yield "nothing to do: --results, --table or both are needed"
        if self.format is Format.ICEBERG:
            yield _LAND_ALONE


@dataclass(frozen=True, kw_only=True)
class Run(OnSpark, OfStreams):
    """All jobs that a TOML file names, tables and counts, in one Spark session. What is said here stands above its [run]."""

    file: Path = argument("TOML file with [land.NAME] and [aggregate.NAME]")
    master: str = setting("Spark's master (default: what the file says, or local[*])", "")
    on_failure: OnFailure | None = setting(
        "what becomes of the other jobs when one fails: stop or go-on (default: what the file says, or stop)", None
    )
    dry_run: bool = setting("only check the file and all that it names; start no Spark", False)


@dataclass(frozen=True, kw_only=True)
class Replay(Printed, OnSpark, AsItIs, AtCluster):
    """A range of a table back into a topic: slowly if asked, and where it was interrupted it goes on."""

    destination_topic: str = setting("topic to publish into")
    topic: str = setting("only what came from this topic", "")
    since: str = setting("from this time on, as in 2026-03-01T12:00:00Z", "", parse=moment)
    until: str = setting("before this time", "", parse=moment)
    where: str = setting("SQL about the table's columns", "")
    rate: float = setting("messages a second, at most; 0: as fast as it goes", 0.0, at_least=0)
    progress_file: str = setting("keeps how far it has come; it goes on there", "")
    name: str = setting("of this replay, for --exactly-once (default: the progress file's)", "")
    exactly_once: bool = setting("nsqd remembers what it has; needs --nsqd", False)
    dry_run: bool = setting("only say what would be replayed", False)

    @property
    def what(self) -> str:
        """By which a progress file knows whether it is of this replay."""
        chosen = f"topic={self.topic!r} since={self.since!r} until={self.until!r} where={self.where!r}"
        return f"{self.table} to {self.destination_topic}, {chosen}"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.exactly_once and not self.nsqd:
            yield "--exactly-once needs --nsqd: a slice that is sent again must go where it went first"
        if self.exactly_once and not (self.name or self.progress_file):
            yield "--exactly-once needs a --progress-file or a --name, by which nsqd knows the replay again"


@dataclass(frozen=True, kw_only=True)
class Compact(Printed, OfTable):
    """Joins a Delta table's small files. Readers and writers notice nothing."""

    target_mb: int = setting("megabytes that a file should have", 128, at_least=1)
    vacuum_hours: int | None = setting(
        "remove files that no version of the last so many hours needs, and what crashes have left a day ago",
        None,
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class Dedupe(Printed, OnSpark, OfTable):
    """Removes messages that a Delta table has twice, as after another writer has added rows that were landed already."""


@dataclass(frozen=True, kw_only=True)
class Reland(Printed, Bodies):
    """Quarantined rows into their table, as far as a corrected schema understands them. It needs no Spark."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.decoder is Kind.RAW:
            yield "raw bodies never fail: choose the --decoder that the quarantined rows need"


@dataclass(frozen=True, kw_only=True)
class Backfill(Printed, OnSpark, Decoding, Reading):
    """Appends what a Delta table lacks of a time range in the logs, up to where it is landed. The same range again adds nothing."""

    since: str = setting("from this time on, as in 2026-03-01T12:00:00Z")  # which the source checks
    until: str = setting("before this time")

    @property
    def source(self) -> From:
        bounds = {"startingTimestamp": self.since, "endingTimestamp": self.until}
        options = self.source_options() | bounds
        return From(topics=self.topic, lookupd=self.lookupd, nsqd=self.nsqd, options=options)


@dataclass(frozen=True, kw_only=True)
class Quality(Printed, OnSpark, AsItIs):
    """How many rows of a table break which rule. Exit status 3 when there are any."""

    rules: Path = setting("TOML file with rules that rows must keep")


@dataclass(frozen=True, kw_only=True)
class Lag(Printed, OfAllNodes, Stored):
    """How many messages a stream has not read yet, and how many it never will; exit status 3 when a node that may have some is missing. Starts no Spark."""

    checkpoint: str = setting("the stream's checkpoint, as in TABLE.checkpoint")
    at_most: int | None = setting("exit status 3 when more messages are behind", None, at_least=0)

    @property
    def source(self) -> From:
        options = {"requireRetention": "false"} | self.required_nodes()
        return From(topics=self.topic, lookupd=self.lookupd, nsqd=self.nsqd, options=options)


@dataclass(frozen=True, kw_only=True)
class OffsetsShow(Printed, Stored):
    """Where the last planned batch of a checkpoint ends."""

    checkpoint: str = setting("the stream's checkpoint")


@dataclass(frozen=True, kw_only=True)
class OffsetsSet(Stored):
    """Makes a new checkpoint that begins there. An existing one is never changed."""

    checkpoint: str = setting("a new folder")
    lane: tuple[tuple[str, int], ...] = setting(
        "LANE=SEQUENCE to begin with, as `offsets show` names it; repeat", parse=place
    )


@dataclass(frozen=True, kw_only=True)
class Doctor(Printed, Stored):
    """What would keep a pipeline from running, one line each. Starts no Spark."""

    topic: tuple[str, ...] = setting("also look at these topics' logs; repeat", ())
    table: tuple[str, ...] = setting("also try whether these tables' places can be written; repeat", ())
    lookupd: tuple[str, ...] = setting("nsqlookupd's HTTP address, host:port; may be repeated", ())
    nsqd: tuple[str, ...] = setting("nsqd's HTTP address instead; may be repeated", ())

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.lookupd and self.nsqd:
            yield NO_ADDRESS


@dataclass(frozen=True, kw_only=True)
class Bench(Printed, OnSpark, Reading):
    """How fast this Spark reads these topics, to nothing, to Parquet and to windows."""


@dataclass(frozen=True, kw_only=True)
class Submit(Job):
    """Runs a job by spark-submit: `nsqpipe submit --master spark://host:7077 -- land --topic clicks ...`."""

    master: str = setting("spark://host:7077, yarn, k8s://https://..., local[*]")
    deploy_mode: DeployMode = setting("client or cluster: where the driver runs", DeployMode.CLIENT)
    conf: tuple[tuple[str, str], ...] = setting(
        "NAME=VALUE for Spark itself; may be repeated", (), parse=pair, is_secret=True
    )
    dry_run: bool = setting("only print the command", False)
    job: tuple[str, ...] = rest("the job and its options, behind --")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.job:
            yield "which job? As in: nsqpipe submit --master spark://host:7077 -- land --topic clicks ..."
