"""Makes bodies readable that are Protobuf, Avro, MessagePack or compressed: `--decoders-file`, and content types.

rules           which decoder applies to a message: the file, as text
building        decoders from rules: reads the schemas that they name
decoder         one decoder: unpack, then parse
unpacking       gzip, deflate, zstd, snappy, within bounds
content_types   the decoder of a message without a rule, from its headers
decoders        all decoders of this nsqadmin: the file as it is now, and work in a thread
cli             `nsqadmin decoders check`
"""
