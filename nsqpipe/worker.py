"""What runs in Spark's Python workers. The module travels with the job, by value, so it imports nothing of ours."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

GAP_COLUMN: Final = "since_previous_us"
Parse = Callable[[bytes], object]
Batches = Iterable[pa.RecordBatch]


def add_gaps(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    last: tuple[str, str, int] | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        times = batch.column("timestamp").cast(pa.int64())
        before = pa.concat_arrays([pa.nulls(1, pa.int64()), times.slice(0, batch.num_rows - 1)])
        topic, node = batch.column("topic"), batch.column("node")
        lane = (topic[0].as_py(), node[0].as_py())
        if last is not None and last[:2] == lane:
            before = pa.concat_arrays([pa.array([last[2]], pa.int64()), times.slice(0, batch.num_rows - 1)])
        gaps = pc.subtract(times, before)
        if batch.num_rows > 1:
            same = pc.and_(
                pc.equal(topic.slice(1), topic.slice(0, batch.num_rows - 1)),
                pc.equal(node.slice(1), node.slice(0, batch.num_rows - 1)),
            )
            gaps = pc.if_else(pa.concat_arrays([pa.array([True]), same]), gaps, pa.scalar(None, pa.int64()))
        last = (topic[-1].as_py(), node[-1].as_py(), times[-1].as_py())
        yield pa.RecordBatch.from_arrays(
            [topic, batch.column("timestamp"), batch.column("size"), gaps],
            schema=pa.schema(
                [
                    ("topic", pa.string()),
                    ("timestamp", pa.timestamp("us", tz="UTC")),
                    ("size", pa.int32()),
                    (GAP_COLUMN, pa.int64()),
                ]
            ),
        )


def msgpack_parser() -> Parse:
    import msgpack

    return lambda body: msgpack.unpackb(body, raw=False, timestamp=3)


def avro_parser(schema_text: str) -> Parse:
    import fastavro

    schema = fastavro.parse_schema(json.loads(schema_text))

    def parse(body: bytes) -> object:
        stream = io.BytesIO(body)
        found = fastavro.schemaless_reader(stream, schema, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes behind the record")
        return found

    return parse


def decoding(make_parser: Callable[[], Parse], value: pa.Schema) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Adds `value`, of the one field of that schema, and `error`, of which one is null in each row."""
    kind = value.field(0).type

    def decode(batches: Batches) -> Iterator[pa.RecordBatch]:
        parse = make_parser()
        for batch in batches:
            values: list[object] = []
            errors: list[str | None] = []
            for body in batch.column("body").to_pylist():
                found, error = _parsed(parse, body, kind)
                values.append(found)
                errors.append(error)
            columns = [*batch.columns, pa.array(values, kind), pa.array(errors, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "value", "error"])

    return decode


def _parsed(parse: Parse, body: bytes, kind: Any) -> tuple[object, str | None]:
    try:
        found = parse(body)
        if not isinstance(found, dict):
            return None, f"expected a record, not {type(found).__name__}"
        pa.scalar(found, kind)  # a field of another type is found here, where it costs one row and not the batch
    except Exception as error:  # what a parser makes of garbage is its own affair; the row says it
        return None, f"{type(error).__name__}: {error}"[:500]
    return found, None
