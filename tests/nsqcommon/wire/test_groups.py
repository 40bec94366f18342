"""Which groups count."""

from __future__ import annotations

import pytest

from nsqcommon.wire.groups import checked_group, valid_group, without_bad_group
from nsqcommon.wire.headers import BadHeaders


@pytest.mark.parametrize("group", ["a", "Zürich", "x" * 128, "two words\n", b"raw"])
def test_a_group_is_some_utf8(group: str | bytes) -> None:
    encoded = checked_group(group)
    assert encoded == (group.encode() if isinstance(group, str) else group)
    assert valid_group(encoded) == encoded.decode()


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ("", "invalid group '': 0 bytes, expected 1 to 128"),
        (b"", "invalid group '': 0 bytes, expected 1 to 128"),
        ("ü" * 65, f"invalid group '{'ü' * 39}...: 130 bytes, expected 1 to 128"),
        (b"\xff", r"invalid group b'\xff': not UTF-8"),
        ("\ud800", r"invalid group '\ud800': not UTF-8"),
        (7, "invalid group 7: expected text or bytes"),
        (None, "invalid group None: expected text or bytes"),
    ],
)
def test_anything_else_is_refused_in_one_line(group: object, reason: str) -> None:
    with pytest.raises(BadHeaders) as caught:
        checked_group(group)  # type: ignore[arg-type]
    assert str(caught.value) == reason
    assert valid_group(group if isinstance(group, bytes) else None) is None


def test_a_header_that_is_too_long_does_not_count() -> None:
    assert valid_group(b"x" * 128) == "x" * 128
    assert valid_group(b"x" * 129) is None


def test_a_message_is_passed_on_without_a_group_that_does_not_count() -> None:
    for good in ({}, {"n": b"1"}, {"n": b"1", "nsq-group": b"ana"}):
        assert without_bad_group(good) is good
    assert without_bad_group({"n": b"1", "nsq-group": b"\xff"}) == {"n": b"1"}
