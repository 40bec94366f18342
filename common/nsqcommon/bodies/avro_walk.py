"""Walks through an Avro body by its schema, without making values: says where a body doesn't fit, and sets bounds.

fastavro trusts a body. It recurses in C, so 5,000 bytes of a recursive type overflow the stack and kill the process. An
array of nulls takes no bytes, so ten bytes can announce a billion of them. And a decimal of a megabyte takes a minute.
So bodies of schemas where this is possible are walked through before fastavro reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

DEEPEST: Final = 100  # levels, as in Protobuf
_MOST_WITHOUT_BYTES: Final = 100_000  # items that take no bytes
_ANY_NUMBER: Final = 1 << 62  # of values
_LONGEST_NUMBER: Final = 10  # bytes
_LONGEST_PATH: Final = 12  # names in an error
_LARGEST_DECIMAL: Final = 1024  # bytes
_FIXED_WIDTHS: Final = {"boolean": 1, "float": 4, "double": 8}
_NUMBERS: Final = ("int", "long")


class Misfit(Exception):
    """A body doesn't fit its schema."""

    def __init__(self, text: str, place: int, *, is_text: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.place = place  # byte
        self.path: list[str] = []  # from the innermost field to the outermost one
        self.is_text = is_text  # a string isn't UTF-8

    def __str__(self) -> str:
        path = self.path if len(self.path) <= _LONGEST_PATH else [*self.path[:2], "…", *self.path[-3:]]
        words = ".".join(reversed(path)).replace(".[", "[")
        return f"{words + ' ' if words else ''}{self.text} at byte {self.place}"


class _TooMany(Exception):
    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


_Step = Callable[["_State", int], int]  # moves from the start of a value to its end


class _State:
    __slots__ = ("body", "depth", "end", "left", "without_bytes")

    def __init__(self, body: bytes, most: int) -> None:
        self.body = body
        self.end = len(body)
        self.depth = 0
        self.left = most  # values
        self.without_bytes = _MOST_WITHOUT_BYTES


class AvroWalk:
    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        """`schema` and `named`, the named types, are fastavro's parsed ones."""
        self._named = named
        self._known: dict[str, _Step] = {}
        self.is_needed = _is_risky(schema, named)  # fastavro alone isn't safe
        self._step = self._compiled(schema)

    def check(self, body: bytes, *, most: int | None = None) -> int:
        """Return where the value ends. Raise Misfit, also if it has more than `most` values."""
        state = _State(body, _ANY_NUMBER if most is None else most)
        try:
            return self._step(state, 0)
        except _TooMany as many:
            raise Misfit(f"has more than {most:,} values,", many.place) from None

    def _compiled(self, schema: Any) -> _Step:
        if isinstance(schema, list):
            return _union([self._compiled(it) for it in schema])
        if isinstance(schema, str):
            return self._of_name(schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema)
        if kind in ("enum", "fixed"):
            step = _enum(len(schema["symbols"])) if kind == "enum" else _fixed(schema["size"])
            self._known[schema["name"]] = step
            return step
        if kind == "array":
            return _array(self._compiled(schema["items"]), takes_bytes=_least(schema["items"], self._named) > 0)
        if kind == "map":
            return _map(self._compiled(schema["values"]))
        if kind == "bytes" and schema.get("logicalType") == "decimal":
            return _decimal
        return self._compiled(kind)

    def _of_name(self, name: str) -> _Step:
        if name in _FIXED_WIDTHS:
            return _fixed(_FIXED_WIDTHS[name])
        if name in _NUMBERS:
            return _number
        if name in ("bytes", "string"):
            return _bytes if name == "bytes" else _string
        if name == "null":
            return _null
        # A recursive type refers to itself before it is compiled.
        return lambda state, at: self._known[name](state, at)

    def _record(self, schema: Any) -> _Step:
        fields = [(field["name"], self._compiled(field["type"])) for field in schema["fields"]]

        def step(state: _State, at: int) -> int:
            state.depth += 1
            if state.depth > DEEPEST:
                raise Misfit(f"is nested deeper than {DEEPEST} levels", at)
            name = ""
            try:
                for name, of_field in fields:  # noqa: B007  # the error needs it
                    at = of_field(state, at)
            except Misfit as misfit:
                misfit.path.append(name)
                raise
            state.depth -= 1
            state.left -= len(fields)
            if state.left < 0:
                raise _TooMany(at)
            return at

        self._known[schema["name"]] = step
        return step


def _is_risky(schema: Any, named: Mapping[str, Any]) -> bool:
    return any(
        _is_recursive(it, named)
        or (_type_of(it) == "array" and not _least(it["items"], named))
        or (_type_of(it) == "bytes" and it.get("logicalType") == "decimal")
        for it in _types_in(schema)
        if isinstance(it, dict)
    )


def _type_of(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _types_in(schema: Any) -> Iterator[Any]:
    """Yield this type and all types that are written within it."""
    yield schema
    if isinstance(schema, list):
        inner = schema
    elif not isinstance(schema, dict):
        return
    else:
        inner = [schema[it] for it in ("items", "values") if it in schema]
        inner += [field["type"] for field in schema.get("fields", ())]
        if not isinstance(schema["type"], str):
            inner.append(schema["type"])
    for it in inner:
        yield from _types_in(it)


def _is_recursive(schema: Any, named: Mapping[str, Any]) -> bool:
    name, seen = schema.get("name"), set()
    waiting = [schema] if name and schema.get("fields") else []
    while waiting:
        for it in _types_in(waiting.pop()):
            if it == name:
                return True
            if isinstance(it, str) and it in named and it not in seen:
                seen.add(it)
                waiting.append(named[it])
    return False


def _least(schema: Any, named: Mapping[str, Any], within: frozenset[str] = frozenset()) -> int:
    """Return the smallest number of bytes that a value takes; every size above 0 counts as 1."""
    if isinstance(schema, list):
        return 1
    if isinstance(schema, str):
        if schema in named and schema not in within:
            return _least(named[schema], named, within | {schema})
        return int(schema != "null")
    kind = schema["type"]
    if kind == "fixed":
        return int(schema["size"] > 0)
    if kind in ("record", "error"):
        return int(any(_least(field["type"], named, within | {schema["name"]}) for field in schema["fields"]))
    return 1 if kind in ("enum", "array", "map") else _least(kind, named, within)


# The steps


def _whole(state: _State, at: int) -> tuple[int, int]:
    """Return the zigzag number here, and where it ends."""
    body, begin = state.body, at
    value = shift = 0
    try:
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1), at
            shift += 7
            if shift >= 7 * _LONGEST_NUMBER:
                raise Misfit(f"has a number of more than {_LONGEST_NUMBER} bytes", begin)
    except IndexError:
        raise Misfit("ends after the body's end,", state.end) from None


def _number(state: _State, at: int) -> int:
    body, begin = state.body, at
    try:
        while body[at] >= 0x80:
            at += 1
    except IndexError:
        raise Misfit("ends after the body's end,", state.end) from None
    if at - begin >= _LONGEST_NUMBER:
        raise Misfit(f"has a number of more than {_LONGEST_NUMBER} bytes", begin)
    return at + 1


def _null(state: _State, at: int) -> int:
    return at


def _fixed(size: int) -> _Step:
    def step(state: _State, at: int) -> int:
        if at + size > state.end:
            raise Misfit("ends after the body's end,", state.end)
        return at + size

    return step


def _bytes(state: _State, at: int) -> int:
    length, first = _whole(state, at)
    if length < 0:
        raise Misfit(f"has a length below 0, {length},", at)
    if first + length > state.end:
        raise Misfit(f"has {length:,} bytes, of which only {state.end - first:,} are there,", at)
    return first + length


def _string(state: _State, at: int) -> int:
    length, first = _whole(state, at)
    end = first + length
    if length < 0:
        raise Misfit(f"has a length below 0, {length},", at)
    if end > state.end:
        raise Misfit(f"has {length:,} bytes, of which only {state.end - first:,} are there,", at)
    try:
        state.body[first:end].decode()
    except UnicodeDecodeError as error:
        raise Misfit(
            f"has byte 0x{state.body[first + error.start]:02x}, which is not UTF-8,", first + error.start, is_text=True
        ) from None
    return end


def _decimal(state: _State, at: int) -> int:
    end = _bytes(state, at)
    if end - at > _LARGEST_DECIMAL:
        raise Misfit(f"is a decimal of more than {_LARGEST_DECIMAL:,} bytes", at)
    return end


def _enum(symbols: int) -> _Step:
    def step(state: _State, at: int) -> int:
        index, end = _whole(state, at)
        if not 0 <= index < symbols:
            raise Misfit(f"has symbol {index} of an enum with {symbols},", at)
        return end

    return step


def _union(branches: list[_Step]) -> _Step:
    def step(state: _State, at: int) -> int:
        index, first = _whole(state, at)
        if not 0 <= index < len(branches):
            raise Misfit(f"has branch {index} of a union with {len(branches)},", at)
        return branches[index](state, first)

    return step


def _array(item: _Step, *, takes_bytes: bool) -> _Step:
    def step(state: _State, at: int) -> int:
        return _items(state, at, item, takes_bytes=takes_bytes)

    return step


def _map(value: _Step) -> _Step:
    def entry(state: _State, at: int) -> int:
        return value(state, _string(state, at))

    def step(state: _State, at: int) -> int:
        return _items(state, at, entry, takes_bytes=True)

    return step


def _items(state: _State, at: int, item: _Step, *, takes_bytes: bool) -> int:
    state.depth += 1
    if state.depth > DEEPEST:
        raise Misfit(f"is nested deeper than {DEEPEST} levels", at)
    number = 0
    while True:
        begin = at
        count, at = _whole(state, at)
        if count < 0:  # then the block's size in bytes follows
            count = -count
            _, at = _whole(state, at)
        if not count:
            state.depth -= 1
            return at
        if takes_bytes:
            if count > state.end - at:
                raise Misfit(f"has {count:,} items and only {state.end - at:,} bytes for them,", begin)
        elif (without := state.without_bytes - count) < 0:
            raise Misfit(f"has more than {_MOST_WITHOUT_BYTES:,} items that take no bytes,", begin)
        else:
            state.without_bytes = without
        state.left -= count
        if state.left < 0:
            raise _TooMany(begin)
        try:
            for _ in range(count):
                at = item(state, at)
                number += 1
        except Misfit as misfit:
            misfit.path.append(f"[{number}]")
            raise
