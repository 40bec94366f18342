"""The header of Confluent's wire format."""

from __future__ import annotations

from time import process_time

import pytest

from nsqcommon.bodies.confluent_header import without_indexes
from nsqcommon.bodies.parsing import Unfit


@pytest.mark.parametrize(("indexes", "given"), [(b"\x00", "[0]"), (b"\x02\x00", "[0]"), (b"\x04\x02\x06", "[1, 3]")])
def test_the_indexes_of_a_protobuf_message_are_left_out(indexes: bytes, given: str) -> None:
    assert without_indexes(indexes + b"body") == b"body", given


def test_a_list_of_a_million_indexes_is_refused_at_once() -> None:
    began = process_time()
    for count in (b"\x01", b"\xca\x01", b"\xfe\xff\xff\xff\x7f"):  # -1, 101, and very many
        with pytest.raises(Unfit, match="the list of Protobuf's message indexes is broken"):
            without_indexes(count + b"\0" * (1 << 20))
    assert process_time() - began < 0.1
