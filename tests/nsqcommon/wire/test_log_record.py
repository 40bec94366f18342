"""The keys of a record, and the messages that were published with them. tests/nsqd/log has the rest of a record."""

from __future__ import annotations

from nsqcommon.wire.log_record import HEADER_SIZE, KEYS, Header, decode_keyed, decode_keys


def record(place: bytes, *, count: int, flags: int = 0) -> tuple[Header, bytes]:
    """Return the header and the bytes of a record from sequence 70 on with this key field."""
    header = Header(
        payload_length=len(place),
        payload_crc=0,
        base_sequence=70,
        base_id=1,
        timestamp=0,
        delay_ms=0,
        count=count,
        flags=flags,
        key_length=len(place),
    )
    return header, bytes(HEADER_SIZE) + place


def test_one_key_is_of_all_messages() -> None:
    header, data = record(b"order-1", count=3)
    assert decode_keyed(header, data, 0) == [(b"order-1", 70, 3)]
    assert decode_keys(header, data, 0) == [b"order-1"]


def test_each_of_several_keys_is_of_its_own_message() -> None:
    header, data = record(b"\1a\0\2bc\1d", count=4, flags=KEYS)
    assert decode_keyed(header, data, 0) == [(b"a", 70, 1), (b"bc", 72, 1), (b"d", 73, 1)]
    assert decode_keys(header, data, 0) == [b"a", b"bc", b"d"]


def test_without_keys_there_are_none() -> None:
    header, data = record(b"", count=2)
    assert not decode_keyed(header, data, 0)
    assert not decode_keys(header, data, 0)
