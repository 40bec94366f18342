"""Sealed values of cookies."""

from __future__ import annotations

from hypothesis import given, strategies

from nsqadmin.oidc.sealing import Sealer

OLD, NEW = bytes([1]) * 32, bytes([2]) * 32


@given(strategies.binary(max_size=100), strategies.data())
def test_only_the_unchanged_text_opens(value: bytes, data: strategies.DataObject) -> None:
    sealer = Sealer([OLD], "session")
    sealed = sealer.seal(value)
    assert sealer.open(sealed) == value
    assert sealer.seal(value) != sealed
    position = data.draw(strategies.integers(0, len(sealed) - 2))  # the last character has bits that don't count
    other = [it for it in "AZaz09-_" if it != sealed[position]][data.draw(strategies.integers(0, 6))]
    assert sealer.open(sealed[:position] + other + sealed[position + 1 :]) is None


def test_every_key_opens_and_the_first_one_seals() -> None:
    sealed = Sealer([OLD], "session").seal(b"x")
    assert Sealer([NEW, OLD], "session").open(sealed) == b"x"
    assert Sealer([NEW], "session").open(sealed) is None
    assert Sealer([NEW], "session").open(Sealer([NEW, OLD], "session").seal(b"x")) == b"x"


def test_a_purpose_has_its_own_key() -> None:
    assert Sealer([OLD], "session").open(Sealer([OLD], "login").seal(b"x")) is None
