"""A root is read as it was written, and proved before anybody believes it."""

from __future__ import annotations

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.remote.framing import BadObject, frame, unframe
from nsqcommon.remote.names import Run
from nsqcommon.remote.root import FileEntry, FilePart, Root, decode_root, encode_root, prove
from tests.nsqcommon.remote.strategies import ROOTS

RUN = Run(7, "00000000000000ab")
PART = FilePart("fold/x/0001", 10, 3, crc32c(b"abc"))


@given(ROOTS)
def test_a_root_is_read_as_it_was_written(root: Root) -> None:
    assert decode_root(encode_root(root)) == root


@given(ROOTS, st.data())
def test_a_changed_byte_changes_nothing_or_is_found(root: Root, draws: st.DataObject) -> None:
    """zstd's own framing has bits that mean nothing; all others are covered by a checksum."""
    data = bytearray(encode_root(root))
    data[draws.draw(st.integers(0, len(data) - 1))] ^= draws.draw(st.integers(1, 255))
    try:
        found = decode_root(bytes(data))
    except BadObject:
        return
    assert found == root


def test_parts_that_do_not_cover_their_file_are_refused() -> None:
    root = Root("node", RUN, {"a": FileEntry(4, (PART,))})
    with pytest.raises(BadObject, match="the parts of a cover 3 bytes of 4"):
        decode_root(encode_root(root))


def test_a_body_that_would_fill_the_memory_is_not_decompressed() -> None:
    data = encode_root(Root("node", RUN, {}))
    fields, start = unframe(data)
    fields[3] = 1 << 40
    with pytest.raises(BadObject, match="not the header of a root"):
        decode_root(frame(fields) + data[start:])


def test_a_root_needs_the_objects_of_its_parts() -> None:
    root = Root("node", RUN, {"a": FileEntry(3, (PART,)), "b": FileEntry(2, (FilePart("", 0, 2, 0),))})
    assert root.objects() == {"fold/x/0001"}


def test_bytes_are_proved() -> None:
    assert prove(PART, b"abc") == b"abc"
    for wrong in (b"abd", b"ab", b""):
        with pytest.raises(BadObject, match=r"fold/x/0001 is damaged in \[10, 13\)"):
            prove(PART, wrong)


def test_a_root_that_readers_would_refuse_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqcommon.remote.root.MOST_PLAIN", 50)
    root = Root("node", RUN, {f"topics/t.{number}/log.json": FileEntry(0, ()) for number in range(4)})
    with pytest.raises(BadObject, match="a root of 4 files has"):
        encode_root(root)
