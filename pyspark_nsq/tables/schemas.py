"""Schema changes of a table: rows may have new fields, and may lack nullable ones, but no field changes its type.

Delta's own append doesn't check schemas: it would add files with other columns, and readers wouldn't see these columns.
So we widen a table before adding the first file with a new field. That is a separate commit, because deltalake has no
commit for both. We only make it when nothing else is wrong with the rows, so a refused batch leaves the schema as it
was. Writers that only know the old fields can continue: fields missing in their files are read as null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError

_SQL: Final[Mapping[str, str]] = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_TRIES: Final = 10  # each failed try is another writer's change of the schema, and these are rare

Json = dict[str, Any]


class Misfit(Exception):
    """Rows don't fit into a table; the text names the first field that doesn't."""


def additions(table: Schema, rows: Schema) -> list[Field]:
    """Return the fields that a table needs for these rows; for a struct that grows, with all of its fields.

    New fields are nullable, because older rows don't have them. Raises Misfit.
    """
    there, given = json.loads(table.to_json()), json.loads(rows.to_json())
    after = _merged_fields("", there, given)
    before = {field["name"]: field for field in there["fields"]}
    changed = [field for field in after if field != before.get(field["name"])]
    return [Field.from_json(json.dumps(field)) for field in changed]


def widen(table: DeltaTable, rows: Schema) -> None:
    """Add the rows' fields that the table lacks, even if other writers change it in the meantime. Raises Misfit."""

    def attempt() -> None:
        if added := additions(table.schema(), rows):
            table.alter.add_columns(added)

    retried(attempt, again=table.update_incremental)


def retried(attempt: Callable[[], None], *, again: Callable[[], None]) -> None:
    """Repeat a commit that fails because another writer has changed the schema; `again` reloads the table."""
    for left in reversed(range(_TRIES)):
        try:
            attempt()
            return
        except CommitFailedError as failure:
            if "Metadata changed" not in str(failure) or not left:
                raise
        again()


def _merged(place: str, there: str | Json, given: str | Json) -> str | Json:
    if isinstance(there, str) or isinstance(given, str) or there["type"] != given["type"]:
        if there != given:
            raise Misfit(f"{place}: {_spelled(given)} is not {_spelled(there)}")
        return there
    if there["type"] == "struct":
        return {**there, "fields": _merged_fields(f"{place}.", there, given)}
    if there["type"] == "array":
        return {**there, "elementType": _merged(f"{place}.element", there["elementType"], given["elementType"])}
    _merged(f"{place}.key", there["keyType"], given["keyType"])
    return {**there, "valueType": _merged(f"{place}.value", there["valueType"], given["valueType"])}


def _merged_fields(place: str, there: Json, given: Json) -> list[Json]:
    known = {field["name"]: field for field in there["fields"]}
    brought = {field["name"]: field for field in given["fields"]}
    merged = []
    for name, field in known.items():
        if name in brought:
            field = {**field, "type": _merged(f"{place}{name}", field["type"], brought[name]["type"])}
        elif not field["nullable"]:
            raise Misfit(f"{place}{name}: the table requires it, and the rows lack it")
        merged.append(field)
    spelled = {name.lower(): name for name in known}
    for name, field in brought.items():
        if name not in known:
            if name.lower() in spelled:
                raise Misfit(f"{place}{name}: the table spells it {spelled[name.lower()]}")
            merged.append(_nullable({**field, "metadata": {}}))
    return merged


def _nullable(field: Json) -> Json:
    kind = field["type"]
    if isinstance(kind, dict) and kind["type"] == "struct":
        kind = {**kind, "fields": [_nullable(inner) for inner in kind["fields"]]}
    return {**field, "type": kind, "nullable": True}


def _spelled(kind: str | Json) -> str:
    if isinstance(kind, str):
        return _SQL.get(kind, kind)
    if kind["type"] == "struct":
        fields = [f"{field['name']}: {_spelled(field['type'])}" for field in kind["fields"]]
        return f"struct<{', '.join(fields)}>"
    if kind["type"] == "array":
        return f"array<{_spelled(kind['elementType'])}>"
    return f"map<{_spelled(kind['keyType'])}, {_spelled(kind['valueType'])}>"
