"""Bodies as Arrow columns. Where to look:

formats         decoding.py (JSON, MessagePack), avro.py, protobuf.py, confluent.py with registry.py
fields          columns.py, quick.py; ddl.py for the schema that users write
"""
