"""Whatever stands in a bucket is read or refused, and nothing else happens."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import cramjam
import msgpack
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.remote.framing import BadObject, frame, header_of
from nsqcommon.remote.marks import decode_gone, decode_hint, decode_node
from nsqcommon.remote.root import decode_root
from nsqcommon.remote.slot import decode_slot

RUN = "0000000007-00000000000000ab"
KINDS = st.sampled_from(("data", "end", "fence", "root", "node", "gone", "hint"))
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5)
ANYTHING = st.recursive(
    PLAIN | st.floats(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(KINDS, st.lists(ANYTHING, max_size=12))
def test_anything_in_a_header_is_read_or_refused(kind: str, fields: list[Any]) -> None:
    likely = [kind, "node", RUN, 1, "writer", 1, 0]
    for header in (fields, [kind, *fields], [*likely, fields, None, False, None], [*likely, [fields], *fields]):
        for decode in (decode_slot, decode_root, decode_node, decode_gone, decode_hint):
            with suppress(BadObject):
                decode(frame(header))


@given(ANYTHING)
def test_so_is_anything_in_a_root(content: object) -> None:
    for body in (content, [[content], [content]]):
        packed: bytes = msgpack.packb(body)
        header = frame(["root", "node", RUN, len(packed), crc32c(packed)])
        with suppress(BadObject):
            decode_root(header + bytes(cramjam.zstd.compress(packed)))


@given(st.binary(max_size=40))
def test_so_are_bytes_that_are_no_object(data: bytes) -> None:
    with suppress(BadObject):
        decode_slot(data)


def test_a_header_is_all_but_the_body() -> None:
    assert header_of(frame(["data"]) + b"body") == frame(["data"])
