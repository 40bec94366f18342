"""Decodes Avro bodies: one record each, written with one schema, without the header of Avro's file format."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import fastavro

from nsqcommon.bodies.avro_walk import AvroWalk, Misfit
from nsqcommon.bodies.parsing import Cause, Unfit

if TYPE_CHECKING:
    from msgspec import Struct


class BadAvroSchema(ValueError):
    """The text is not the schema of a record."""


class AvroParser:
    def __init__(self, schema: str, *, most: int | None = None) -> None:
        """`schema` is the JSON text of the writer's schema. Raises BadAvroSchema.

        `most` is how many values a body may have. We only count those of a body with more bytes, because counting takes
        as long again as reading them.
        """
        self._text = schema
        self._most = most
        named: dict[str, Any] = {}
        try:
            self._schema = fastavro.parse_schema(json.loads(schema), named)
            self._walk = AvroWalk(self._schema, named)
        except Exception as error:  # fastavro raises errors of many types here, without a common base
            raise BadAvroSchema(f"{type(error).__name__}: {error}") from None

    def __reduce__(self) -> tuple[object, ...]:
        return partial(AvroParser, most=self._most), (self._text,)

    @property
    def identity(self) -> tuple[object, ...]:
        return "avro", self._text

    def typed(self, record: type[Struct]) -> Callable[[bytes], object] | None:
        return None

    def parse(self, body: bytes) -> object:
        if self._walk.is_needed or (self._most is not None and len(body) > self._most):
            self._check(body)
        stream = io.BytesIO(body)
        try:
            found = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as error:  # garbage makes fastavro raise anything, and it is the row's error
            self._check(body)  # says it better
            raise Unfit(Cause.NOT_AVRO, f"{type(error).__name__}: {error} at byte {stream.tell()}"[:200]) from None
        if stream.tell() != len(body):
            raise Unfit(Cause.TRAILING, f"from byte {stream.tell()} on")
        return found

    def _check(self, body: bytes) -> None:
        try:
            self._walk.check(body, most=self._most)
        except Misfit as misfit:
            raise Unfit(Cause.NOT_UTF8 if misfit.is_text else Cause.NOT_AVRO, str(misfit)) from None
