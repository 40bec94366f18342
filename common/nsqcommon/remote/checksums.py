"""The CRC32C of bytes that follow each other, out of the checksums of the pieces, without reading the bytes again.

A CRC is the remainder of a polynomial whose coefficients are the bits. To append `length` bytes means to multiply it
by x^(8 * length), and the remainder of that product is found in some dozens of steps, whatever the length is. For example,
for a slot of 8 MiB in four pieces, that takes less than a hundredth of the time of another pass over its bytes.

Polynomials are numbers of 32 bits, the coefficient of x^0 in the highest one, as everywhere with this CRC.
"""

from __future__ import annotations

from typing import Final

_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 1 << 31  # x^0
_BITS_OF_LENGTHS: Final = 64


def joined_crc(first: int, second: int, length: int) -> int:
    """Return the checksum of two pieces, given that of each, and the length of the second one in bytes."""
    return _product(_shift(length), first) ^ second


def _product(one: int, other: int) -> int:
    """Return the remainder of the product of two polynomials."""
    found = 0
    while one:
        if one & _ONE:
            found ^= other
        one = (one << 1) & 0xFFFFFFFF
        other = (other >> 1) ^ _POLYNOMIAL if other & 1 else other >> 1
    return found


def _powers() -> tuple[int, ...]:
    """Return x^8, x^16, x^32 and so on: a shift by 1 byte, by 2, by 4."""
    powers = [1 << (31 - 8)]
    while len(powers) < _BITS_OF_LENGTHS:
        powers.append(_product(powers[-1], powers[-1]))
    return tuple(powers)


def _shift(length: int) -> int:
    """Return x^(8 * length)."""
    found = _ONE
    for place, power in enumerate(_SHIFTS):
        if length >> place & 1:
            found = _product(power, found)
    return found


_SHIFTS: Final = _powers()
