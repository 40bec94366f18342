"""CORE: the SQL of an outbox, for Postgres and SQLite."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_is_name: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}(\.[A-Za-z_][A-Za-z0-9_$]{0,62})?").fullmatch

_INDEXES: Final = """\
CREATE INDEX IF NOT EXISTS {index}_to_send ON {table} (id)
    WHERE node IS NULL AND sent_at IS NULL AND error IS NULL;
CREATE INDEX IF NOT EXISTS {index}_in_doubt ON {table} (node)
    WHERE node IS NOT NULL AND sent_at IS NULL;
CREATE INDEX IF NOT EXISTS {index}_sent ON {table} (sent_at)
    WHERE sent_at IS NOT NULL;
"""

POSTGRES_SCHEMA: Final = (
    """\
CREATE TABLE IF NOT EXISTS {table} (
    id bigserial PRIMARY KEY,
    topic text,
    body bytea NOT NULL,
    headers jsonb,
    key text,
    deliver_at timestamptz,
    node text,
    attempted_at timestamptz,
    sent_at timestamptz,
    error text
);
"""
    + _INDEXES
)

SQLITE_SCHEMA: Final = (
    """\
CREATE TABLE IF NOT EXISTS {table} (
    id integer PRIMARY KEY AUTOINCREMENT,
    topic text,
    body blob NOT NULL,
    headers text,
    key text,
    deliver_at text,
    node text,
    attempted_at text,
    sent_at text,
    error text
);
"""
    + _INDEXES
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    parameter: str
    now: str
    ago: str  # this many seconds, a parameter, before now
    delay: str  # seconds until `deliver_at`
    new_key: str
    as_text: str  # `deliver_at`
    among: str  # tests whether `id` is in a list parameter
    schema: str


POSTGRES: Final = Dialect(
    parameter="%s",
    now="now()",
    ago="now() - %s * interval '1 second'",
    delay="(extract(epoch from deliver_at) - extract(epoch from now()))::float8",  # 'infinity' can't be subtracted from
    new_key="replace(gen_random_uuid()::text, '-', '')",
    as_text="deliver_at::text",
    among="id = ANY(%s)",
    schema=POSTGRES_SCHEMA,
)
SQLITE: Final = Dialect(
    parameter="?",
    now="strftime('%Y-%m-%d %H:%M:%f', 'now')",
    ago="strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || ? || ' seconds')",
    delay="(julianday(deliver_at) - julianday('now')) * 86400.0",
    new_key="lower(hex(randomblob(16)))",
    as_text="deliver_at",
    among="id IN (SELECT value FROM json_each(?))",
    schema=SQLITE_SCHEMA,
)


class Statements:
    """The statements for one table. Comments list the parameters in order.

    `quoted` comes from a name of letters, digits and underscores, so SQL injection is impossible.
    """

    def __init__(self, table: str, dialect: Dialect) -> None:
        table, quoted, d = checked_table(table), quoted_table(table), dialect
        p = d.parameter
        columns = f"id, topic, body, headers, key, {d.as_text}, {d.delay}"
        unsent = "sent_at IS NULL AND error IS NULL"
        to_send = f"node IS NULL AND {unsent}"
        in_doubt = f"node IS NOT NULL AND {unsent}"
        nothing = "node = NULL, attempted_at = NULL, error = NULL"
        self.schema = d.schema.format(table=quoted, index=table.rpartition(".")[2])
        self.check = f"SELECT {columns}, node, attempted_at, sent_at, error FROM {quoted} WHERE 1 = 0"  # nosec B608
        # node, maximum seconds until deliver_at, maximum rows
        self.claim = (
            f"UPDATE {quoted} SET node = {p}, attempted_at = {d.now}, key = coalesce(key, {d.new_key})"  # nosec B608
            f" WHERE id IN (SELECT id FROM {quoted} WHERE {to_send}"
            f" AND (deliver_at IS NULL OR coalesce({d.delay}, 0) <= {p}) ORDER BY id LIMIT {p})"
            f" AND {to_send} RETURNING {columns}"
        )
        self.nodes_in_doubt = f"SELECT DISTINCT node FROM {quoted} WHERE {in_doubt}"  # nosec B608
        # node, maximum rows
        self.in_doubt = f"SELECT {columns} FROM {quoted} WHERE node = {p} AND {in_doubt} ORDER BY id LIMIT {p}"  # nosec B608
        # ids
        self.sent = f"UPDATE {quoted} SET sent_at = {d.now} WHERE {d.among} AND {in_doubt}"  # nosec B608
        self.delete = f"DELETE FROM {quoted} WHERE {d.among} AND {in_doubt}"  # nosec B608
        self.release = f"UPDATE {quoted} SET {nothing} WHERE {d.among} AND {in_doubt}"  # nosec B608
        # error, id
        self.refuse = f"UPDATE {quoted} SET error = {p}, node = NULL, attempted_at = NULL WHERE id = {p} AND {in_doubt}"  # nosec B608
        self.refuse_later = f"UPDATE {quoted} SET error = {p} WHERE id = {p} AND {in_doubt}"  # nosec B608
        # A time in the future means that the clock went back, so we can't tell how long ago it was.
        too_old = f"{in_doubt} AND (attempted_at IS NULL OR attempted_at < {d.ago} OR attempted_at > {d.now})"
        # error, seconds
        self.give_up = f"UPDATE {quoted} SET error = {p} WHERE {too_old} RETURNING id, node"  # nosec B608
        # seconds
        self.send_again = f"UPDATE {quoted} SET {nothing} WHERE {too_old} RETURNING id"  # nosec B608
        self.send_parked_again = (
            f"UPDATE {quoted} SET {nothing}"  # nosec B608
            " WHERE node IS NOT NULL AND sent_at IS NULL AND error IS NOT NULL RETURNING id"
        )
        # seconds, maximum rows
        self.clean_up = f"DELETE FROM {quoted} WHERE id IN (SELECT id FROM {quoted} WHERE sent_at < {d.ago} LIMIT {p})"  # nosec B608


def checked_table(name: str) -> str:
    """Return the quoted table name, with its schema if given. Raise ValueError."""
    if not _is_name(name):
        raise ValueError(f"invalid table name {name!r}: use letters, digits and underscores: TABLE or SCHEMA.TABLE")
    return name


def quoted_table(name: str) -> str:
    return ".".join(f'"{part}"' for part in name.split("."))
