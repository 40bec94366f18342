"""The decoders of formats with their own schema, or with Confluent's header.

They are apart from `decoding.py`, so that only jobs that need fastavro and protobuf import them.
"""

from __future__ import annotations

import pyarrow as pa

from nsqcommon.bodies.avro import AvroParser
from nsqcommon.bodies.confluent import FramedParser, RegisteredAvroParser
from nsqcommon.bodies.protobuf import ProtobufParser
from nsqcommon.bodies.registry import Registry
from pyspark_nsq.bodies.decoding import RecordDecoder, json_parser


def avro_decoder(fields: pa.StructType, schema: str) -> RecordDecoder:
    """Return the decoder of bodies written with this schema. Raises BadAvroSchema."""
    return RecordDecoder(fields, AvroParser(schema))


def protobuf_decoder(fields: pa.StructType, descriptors: bytes, message: str) -> RecordDecoder:
    """Return the decoder of bodies with this message. Raises BadDescriptors."""
    return RecordDecoder(fields, ProtobufParser(descriptors, message))


def confluent_avro_decoder(fields: pa.StructType, schema: str | Registry) -> RecordDecoder:
    """Return a decoder that uses the registry, or one schema for all numbers. Raises BadAvroSchema."""
    if isinstance(schema, Registry):
        return RecordDecoder(fields, RegisteredAvroParser(schema))
    return RecordDecoder(fields, FramedParser(AvroParser(schema)))


def confluent_json_decoder(fields: pa.StructType) -> RecordDecoder:
    return RecordDecoder(fields, FramedParser(json_parser(fields)))


def confluent_protobuf_decoder(fields: pa.StructType, descriptors: bytes, message: str) -> RecordDecoder:
    """Return the decoder of bodies with this message. Raises BadDescriptors."""
    return RecordDecoder(fields, FramedParser(ProtobufParser(descriptors, message)))
