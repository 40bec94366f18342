"""Bodies of JSON into Arrow, in one process: `python -m bench.spark.decoding`. Rows for each second of processor time.

Bodies are those of the landing's benchmark, eight fields and 200 bytes: all of them good, with fields that the schema
lacks, and with every tenth one cut off.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgpack
import pyarrow as pa

from pyspark_nsq.bodies.ddl import parse_fields
from pyspark_nsq.bodies.decoding import RecordDecoder, json_decoder, msgpack_decoder
from scripts.command_line import option, read_options

FIELDS = (
    "user string, amount double, item string, quantity int, country string, at timestamp, active boolean, note string"
)
_BATCH = 8192


def records(count: int) -> Iterator[dict[str, object]]:
    chance = random.Random(1)
    for number in range(count):
        yield {
            "user": f"user-{chance.randrange(10**6)}",
            "amount": round(chance.random() * 1000, 2),
            "item": f"item-{number}",
            "quantity": chance.randrange(100),
            "country": chance.choice(("de", "fr", "us")),
            "at": f"2026-03-01T12:00:{number % 60:02d}.123Z",
            "active": bool(number % 2),
            "note": "x" * 40,
        }


def measure(decoder: RecordDecoder, bodies: list[bytes], rounds: int) -> float:
    """Return the microseconds of processor time for each row, in the best round."""
    batch = pa.array(bodies, pa.binary())
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        decoder.decode(batch)
        found.append(time.process_time() - begin)
    return min(found) / len(bodies) * 1e6


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    rounds: int = option(20, "the quickest of so many counts")


def main() -> None:
    rounds = read_options(DecodingOptions, name="python -m bench.spark.decoding", about=__doc__).rounds
    good = [json.dumps(record).encode() for record in records(_BATCH)]
    packed = [bytes(msgpack.packb(record)) for record in records(_BATCH)]
    cut = [body if number % 10 else body[:-1] for number, body in enumerate(good)]
    fields = parse_fields(FIELDS)
    for name, decoder, bodies in (
        ("JSON", json_decoder(fields), good),
        ("JSON, two of eight fields", json_decoder(parse_fields("user string, amount double")), good),
        ("JSON, a tenth cut off", json_decoder(fields), cut),
        ("MessagePack", msgpack_decoder(fields), packed),
    ):
        taken = measure(decoder, bodies, rounds)
        print(f"{name:30} {taken:6.2f} us a row, {1e6 / taken:>12,.0f} rows per second of processor time")


if __name__ == "__main__":
    main()
