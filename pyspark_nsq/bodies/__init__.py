"""Bodies as Arrow columns. The parsers, bytes to plain values, are in `nsqcommon.bodies`.

Where to look:

    decoders        decoding.py (JSON, MessagePack), formats.py (Avro, Protobuf, Confluent's header)
    fields          columns.py, quick.py; ddl.py for the schema that users write
"""
