"""A decoders file for the topics of a shop, with its descriptors and schemas."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support import shop

FILE = """\
[[decoder]]
topic = "orders"
decode = "protobuf"
descriptors = "shop.desc"
message = "shop.Order"

[[decoder]]
topic = "packed"
decode = ["gzip", "protobuf"]
descriptors = "shop.desc"
message = "shop.Order"

[[decoder]]
topic = "avro"
decode = "avro"
schema = "order.avsc"

[[decoder]]
topic = "numbered"
decode = ["confluent", "avro"]
schemas = { 17 = "order.avsc" }

[[decoder]]
topic = "framed"
decode = ["confluent", "protobuf"]
descriptors = "shop.desc"
message = "shop.Order"

[[decoder]]
topic = "msgpack"
decode = "msgpack"

[[decoder]]
topic = "text"
decode = "zstd"

[[decoder]]
topic = "plain"
decode = "none"
"""


def write_decoders(folder: Path, text: str = FILE) -> str:
    """Write the file with all that it names, and return its path."""
    (folder / "shop.desc").write_bytes(shop.descriptors())
    (folder / "order.avsc").write_text(json.dumps(shop.ORDER_SCHEMA))
    path = folder / "decoders.toml"
    path.write_text(text)
    return str(path)
