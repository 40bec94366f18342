"""Walks through a Protobuf body that its library has refused, to name the field and the byte where it doesn't fit.

The library only says that the wire format was corrupt. And it makes objects of all unknown fields at once, so we first
look if they are few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

DEEPEST: Final = 100  # levels, as in Google's libraries
_LONGEST_NUMBER: Final = 10  # bytes
_MOST_FIELDS: Final = 20_000  # a tenth of a second; in a longer body the place hardly matters
_LONGEST_PATH: Final = 12  # names in an error
_VARINT, _EIGHT, _BYTES, _GROUP, _END, _FOUR = range(6)
_SIZES: Final = {_EIGHT: 8, _FOUR: 4}
_VARINT_TYPES: Final = frozenset((3, 4, 5, 8, 13, 14, 17, 18))  # FieldDescriptor.TYPE_...: int64 and so on, bool, enum
_FOUR_TYPES: Final = frozenset((2, 7, 15))  # float, fixed32, sfixed32
_EIGHT_TYPES: Final = frozenset((1, 6, 16))
_TYPE_GROUP: Final = 10
_TYPE_STRING: Final = 9


class _GaveUp(Exception):
    pass


class Misfit(Exception):
    """A body doesn't fit its message."""

    def __init__(self, text: str, place: int, *, is_text: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.place = place  # byte
        self.is_text = is_text  # a string isn't UTF-8
        self.number = 0  # of the innermost field; 0: none
        self.path: list[str] = []  # from the innermost known field to the outermost one

    def __str__(self) -> str:
        path = self.path if len(self.path) <= _LONGEST_PATH else [*self.path[:2], "…", *self.path[-3:]]
        name = f" ({'.'.join(reversed(path))})" if path else ""
        where = f"field {self.number}{name} " if self.number else ""
        return f"{where}{self.text} at byte {self.place}"


def find_misfit(body: bytes, kind: Descriptor) -> Misfit | None:
    """Return where the body doesn't fit the message; None if we don't find that in its first fields."""
    try:
        _message(body, 0, len(body), kind, 1, [_MOST_FIELDS])
    except Misfit as misfit:
        return misfit
    except _GaveUp:
        pass
    return None


def has_few_fields(body: bytes) -> bool:
    """Return True if the body, which the library has parsed, has no more fields at its top than we look at."""
    try:
        _message(body, 0, len(body), None, 1, [_MOST_FIELDS])
    except (Misfit, _GaveUp):
        return False
    return True


def _message(
    body: bytes, at: int, end: int, kind: Descriptor | None, depth: int, left: list[int], group: int = 0
) -> int:
    """Walk through the fields up to `end`, or up to the end of this group. `kind` is None for an unknown group.

    `left` has the number of fields after which we give up.
    """
    if depth > DEEPEST:
        raise Misfit(f"is nested deeper than {DEEPEST} levels", at)
    fields = {} if kind is None else kind.fields_by_number
    while at < end:
        left[0] -= 1
        if left[0] < 0:
            raise _GaveUp
        begin = at
        tag, at = _number(body, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == _END:
            if number != group:
                raise Misfit(f"the end of a group, {number}, that has not begun,", begin)
            return at
        if not 0 < number < 1 << 29:
            raise Misfit(f"{number} is no number of a field", begin)
        field = fields.get(number)
        try:
            at = _field(body, at, end, field, wire, number, depth, left)
        except Misfit as misfit:
            misfit.number = misfit.number or number
            if field is not None:
                misfit.path.append(field.name)
            raise
    if group:
        raise Misfit("is a group without an end", at)
    return at


def _field(
    body: bytes,
    at: int,
    end: int,
    field: FieldDescriptor | None,
    wire: int,
    number: int,
    depth: int,
    left: list[int],
) -> int:
    if wire == _VARINT:
        return _number(body, at, end)[1]
    if wire in _SIZES:
        if at + _SIZES[wire] > end:
            raise Misfit(_too_long(body, end), end)
        return at + _SIZES[wire]
    if wire == _GROUP:
        is_known = field is not None and field.type == _TYPE_GROUP
        return _message(body, at, end, field.message_type if is_known and field else None, depth + 1, left, number)
    if wire != _BYTES:
        raise Misfit(f"has wire type {wire}, which does not exist,", at)
    begin = at
    length, at = _number(body, at, end)
    if at + length > end:
        raise Misfit(f"has {length:,} bytes, of which only {end - at:,} are there,", begin)
    if field is not None:
        _inside(body, at, at + length, field, depth, left)
    return at + length


def _inside(body: bytes, at: int, end: int, field: FieldDescriptor, depth: int, left: list[int]) -> None:
    if field.message_type is not None:
        if field.type != _TYPE_GROUP:
            _message(body, at, end, field.message_type, depth + 1, left)
    elif field.type == _TYPE_STRING:
        try:
            body[at:end].decode()
        except UnicodeDecodeError as error:
            raise Misfit(
                f"has byte 0x{body[at + error.start]:02x}, which is not UTF-8,", at + error.start, is_text=True
            ) from None
    elif field.type in _VARINT_TYPES:
        while at < end:
            left[0] -= 1
            if left[0] < 0:
                raise _GaveUp
            at = _number(body, at, end)[1]
    elif (field.type in _FOUR_TYPES and (end - at) % 4) or (field.type in _EIGHT_TYPES and (end - at) % 8):
        raise Misfit(f"has {end - at:,} bytes, which is not a whole number of values,", at)


def _number(body: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number here, and where it ends."""
    value = 0
    for taken, byte in enumerate(body[at : min(end, at + _LONGEST_NUMBER)]):
        value |= (byte & 0x7F) << 7 * taken
        if byte < 0x80:
            return value, at + taken + 1
    if end - at >= _LONGEST_NUMBER:
        raise Misfit(f"has a number of more than {_LONGEST_NUMBER} bytes", at)
    raise Misfit(_too_long(body, end), end)


def _too_long(body: bytes, end: int) -> str:
    return "ends after the body's end," if end == len(body) else "ends after the end of its message,"
