"""Builds the decoder for a job's options. Wrong options are found before Spark starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark_nsq.bodies.ddl import BadSchema, parse_fields
from pyspark_nsq.bodies.decoding import Decoder, RawDecoder, json_decoder, msgpack_decoder
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqcommon.bodies.registry import Registry
    from nsqpipe.jobs import Bodies


def make_decoder(
    kind: Kind,
    schema: str,
    avro_schema: str = "",
    *,
    registry: str = "",
    descriptors: str = "",
    message: str = "",
    confluent: bool = False,
) -> Decoder:
    """Return the decoder for these options. Raises PipeFailed. Doesn't query a registry yet.

    `schema` is written as in SQL: `user string, amount double`. `avro_schema` and `descriptors` are file paths.
    """
    _check_combination(
        kind,
        {
            "--schema": (schema, (Kind.JSON, Kind.MSGPACK, Kind.AVRO, Kind.PROTOBUF)),
            "--avro-schema": (avro_schema, (Kind.AVRO,)),
            "--registry": (registry, (Kind.AVRO,)),
            "--descriptors": (descriptors, (Kind.PROTOBUF,)),
            "--message": (message, (Kind.PROTOBUF,)),
            "--confluent": (confluent, (Kind.JSON, Kind.AVRO, Kind.PROTOBUF)),
        },
    )
    if kind is Kind.RAW:
        return RawDecoder()
    fields = _fields(kind, schema)
    if kind is Kind.AVRO:
        return _avro(fields, avro_schema, registry, confluent=confluent)
    if kind is Kind.PROTOBUF:
        return _protobuf(fields, descriptors, message, confluent=confluent)
    if confluent:
        from pyspark_nsq.bodies.formats import confluent_json_decoder

        return confluent_json_decoder(fields)
    return json_decoder(fields) if kind is Kind.JSON else msgpack_decoder(fields)


def decoder_of(job: Bodies) -> Decoder:
    """Return the decoder for the job's options. Raises PipeFailed."""
    return make_decoder(
        job.decoder,
        job.schema,
        job.avro_schema,
        registry=job.registry,
        descriptors=job.descriptors,
        message=job.message,
        confluent=job.confluent,
    )


def check_registry(registry: str) -> None:
    """Query the registry of --registry, if given. Raises PipeFailed."""
    if registry:
        from nsqcommon.bodies.registry import RegistryFailed

        try:
            _registry(registry).check()
        except RegistryFailed as error:
            raise PipeFailed(f"--registry: {error}") from None


def _check_combination(kind: Kind, given: dict[str, tuple[object, tuple[Kind, ...]]]) -> None:
    for flag, (value, kinds) in given.items():
        if value and kind not in kinds:
            if kind is Kind.RAW:
                raise PipeFailed(f"{flag} does not apply to raw bodies: choose a --decoder")
            raise PipeFailed(f"{flag} does not apply to --decoder {kind}; it is for {', '.join(kinds)}")


def _fields(kind: Kind, schema: str) -> pa.StructType:
    if not schema:
        raise PipeFailed(f"--decoder {kind} needs a --schema, as in --schema 'user string, amount double'")
    try:
        return parse_fields(schema)
    except BadSchema as error:
        raise PipeFailed(f"--schema {schema!r} is not a list of fields: {error}") from None


def _avro(fields: pa.StructType, path: str, registry: str, *, confluent: bool) -> Decoder:
    from nsqcommon.bodies.avro import BadAvroSchema
    from pyspark_nsq.bodies.formats import avro_decoder, confluent_avro_decoder

    if bool(path) == bool(registry):
        raise PipeFailed(
            "--decoder avro needs --avro-schema, the file with the schema that bodies were written with, or --registry"
        )
    if registry:
        return confluent_avro_decoder(fields, _registry(registry))
    text = _read("--avro-schema", path).decode(errors="replace")
    try:
        return confluent_avro_decoder(fields, text) if confluent else avro_decoder(fields, text)
    except BadAvroSchema as error:
        raise PipeFailed(f"--avro-schema {path} is not an Avro schema: {error}") from None


def _protobuf(fields: pa.StructType, path: str, message: str, *, confluent: bool) -> Decoder:
    from nsqcommon.bodies.protobuf import BadDescriptors
    from pyspark_nsq.bodies.formats import confluent_protobuf_decoder, protobuf_decoder

    if not path or not message:
        raise PipeFailed(
            "--decoder protobuf needs --descriptors, the file that protoc --include_imports --descriptor_set_out "
            "writes, and --message, the name of the message in it, as in shop.Order"
        )
    found = _read("--descriptors", path)
    try:
        return (confluent_protobuf_decoder if confluent else protobuf_decoder)(fields, found, message)
    except BadDescriptors as error:
        raise PipeFailed(f"--descriptors {path} {error}") from None


def _registry(url: str) -> Registry:
    from nsqcommon.bodies.registry import Registry

    try:
        parts = urlsplit(url)
        # An @ after the host means that the password has a slash, and its second part would look like a path.
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        good = good and "@" not in url.rpartition(parts.netloc)[2]
    except ValueError:  # the port isn't a number
        good = False
    if not good:
        # The address may contain a password, so we don't show it.
        raise PipeFailed("--registry: expected an address like http://registry:8081")
    return Registry(url)


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise PipeFailed(f"{flag} {path}: {error.strerror}") from None
