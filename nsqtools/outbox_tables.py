"""The table of an outbox in a real database. Methods block: the relay calls them in a thread, one at a time."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from nsqcommon.version import how_to_install
from nsqtools.outbox import OutboxRow
from nsqtools.outbox_sql import POSTGRES, SQLITE, Statements, quoted_table

if TYPE_CHECKING:
    import psycopg

_CLEANED_AT_ONCE: Final = 1000  # rows
_CONNECT_TIMEOUT: Final = 5  # seconds
_PATIENCE: Final = 5.0  # seconds for another writer of SQLite
# If a relay's machine is gone, its lock must not last for hours.
_SETTINGS: Final = (
    "SET synchronous_commit = on",  # if a crash loses the node, the row could be published twice
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
)
_PASSING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class DatabaseDown(Exception):
    """The database doesn't answer. Reconnecting may help."""


class DatabaseWrong(Exception):
    """The database answers, but this can't work: the table is missing, or we have no permission."""


class DatabaseConnection(Protocol):
    """A connection to a database."""

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement in its own transaction, and return its rows. Raise DatabaseDown or DatabaseWrong."""

    def ids(self, ids: Sequence[object]) -> object:
        """Convert a list of ids into a parameter."""

    def lock(self, table: str) -> bool:
        """Try to become the table's only relay until the end of this connection. Return True if it worked."""

    def close(self) -> None: ...


def is_database(url: str) -> bool:
    return _scheme(url) in ("postgresql", "postgres", "sqlite")


def open_outbox(url: str, table: str, *, make: bool = False) -> OutboxTable:
    """Connect. Raise DatabaseDown or DatabaseWrong. With `make`, an SQLite database is created if it is missing."""
    if _scheme(url) == "sqlite":
        return OutboxTable(_SQLite(url, make=make), table, Statements(table, SQLITE))
    return OutboxTable(_postgres(url), table, Statements(table, POSTGRES))


def statements_for(url: str, table: str) -> Statements:
    return Statements(table, SQLITE if _scheme(url) == "sqlite" else POSTGRES)


def _scheme(url: str) -> str:
    """Return the kind of database, without SQLAlchemy's driver name (`postgresql+psycopg://...`)."""
    return url.partition("://")[0].partition("+")[0]


class OutboxTable:
    """The rows of one table. nsqtools.outbox describes their states."""

    def __init__(self, link: DatabaseConnection, table: str, statements: Statements) -> None:
        self._link = link
        self._table = table
        self._statements = statements

    def close(self) -> None:
        self._link.close()

    def create(self) -> None:
        """Create the table if it doesn't exist."""
        for statement in self._statements.schema.split(";\n"):
            if statement.strip():
                self._link.run(statement)

    def check(self) -> None:
        """Raise DatabaseWrong if the table or one of its columns is missing."""
        self._link.run(self._statements.check)

    def lock(self) -> bool:
        return self._link.lock(self._table)

    def claim(self, node: str, *, count: int, due_within: float) -> list[OutboxRow]:
        """Claim the next rows to send, ordered by id. They are in doubt from now on."""
        return _rows(self._link.run(self._statements.claim, node, due_within, count))

    def nodes_in_doubt(self) -> list[str]:
        return sorted(node for (node,) in self._link.run(self._statements.nodes_in_doubt))

    def in_doubt(self, node: str, count: int) -> list[OutboxRow]:
        return _rows(self._link.run(self._statements.in_doubt, node, count))

    def sent(self, rows: Sequence[OutboxRow], *, delete: bool) -> None:
        self._for_all(self._statements.delete if delete else self._statements.sent, rows)

    def release(self, rows: Sequence[OutboxRow]) -> None:
        """Release rows that were certainly not stored, so that any node may get them."""
        self._for_all(self._statements.release, rows)

    def refuse(self, row: OutboxRow, error: str, *, is_certain: bool) -> None:
        statement = self._statements.refuse if is_certain else self._statements.refuse_later
        self._link.run(statement, error, row.id)

    def give_up(self, error: str, seconds: float) -> list[tuple[Any, ...]]:
        """Park rows that have been in doubt for longer than this. Return ids and nodes."""
        return self._link.run(self._statements.give_up, error, seconds)

    def send_again(self, seconds: float) -> list[Any]:
        """Release rows that have been in doubt for longer than this, to send them again. Return the ids."""
        return [id for (id,) in self._link.run(self._statements.send_again, seconds)]

    def send_parked_again(self) -> list[Any]:
        """Release rows parked as unknown, to send them again. Return the ids."""
        return [id for (id,) in self._link.run(self._statements.send_parked_again)]

    def clean_up(self, seconds: float) -> None:
        """Delete some of the rows sent longer ago than this."""
        self._link.run(self._statements.clean_up, seconds, _CLEANED_AT_ONCE)

    def _for_all(self, statement: str, rows: Sequence[OutboxRow]) -> None:
        if rows:
            self._link.run(statement, self._link.ids([row.id for row in rows]))


def _rows(found: list[tuple[Any, ...]]) -> list[OutboxRow]:
    return sorted((OutboxRow(*it) for it in found), key=lambda row: row.id)


class _SQLite:
    def __init__(self, url: str, *, make: bool) -> None:
        path = url.partition("://")[2].removeprefix("/")  # as in SQLAlchemy: sqlite:////var/x is absolute
        self._path = Path(path).resolve()
        if not self._path.exists() and not make:
            raise DatabaseWrong(f"there is no {self._path}")
        self._lock: int | None = None
        try:
            # Threads take turns, but sqlite3 can't know that.
            self._connection = sqlite3.connect(
                self._path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise DatabaseWrong(f"{self._path}: {error}") from error
        # A text with invalid UTF-8 must not stop later rows.
        self._connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        self.run("PRAGMA synchronous = FULL")  # if a power cut loses the node, the row could be published twice

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            may_pass = getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING
            raise (DatabaseDown if may_pass else DatabaseWrong)(str(error)) from error

    def ids(self, ids: Sequence[object]) -> object:
        return json.dumps(ids)

    def lock(self, table: str) -> bool:
        # The lock belongs to this open file, so the kernel releases it however the process ends.
        # SQLite takes main.Outbox for the same table as outbox.
        path = f"{self._path}.{table.rpartition('.')[2].lower()}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise DatabaseWrong(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def close(self) -> None:
        self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _postgres(url: str) -> DatabaseConnection:
    try:
        import psycopg
    except ImportError as error:
        raise DatabaseWrong(f"Postgres needs psycopg: {how_to_install('outbox')}") from error
    rest = url.partition("://")[2]
    try:
        connection = psycopg.connect(
            f"postgresql://{rest}",
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT,
            application_name="outbox_to_nsq",
        )
    except psycopg.OperationalError as error:
        raise DatabaseDown(_one_line(error)) from error
    except psycopg.Error as error:
        raise DatabaseWrong(_one_line(error)) from error
    return _Postgres(connection)


class _Postgres:
    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        import psycopg
        from psycopg.types.string import TextLoader

        self._connection = connection
        self._error = psycopg.Error
        # A retry can't help: missing table or column, no permission, or a parameter of the wrong type.
        self._hopeless = (
            psycopg.ProgrammingError,
            psycopg.DataError,
            psycopg.IntegrityError,
            psycopg.NotSupportedError,
        )
        for kind in ("json", "jsonb"):
            connection.adapters.register_loader(kind, TextLoader)
        for setting in _SETTINGS:
            self.run(setting)

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return cursor.fetchall() if cursor.description is not None else []
        except self._hopeless as error:
            raise DatabaseWrong(_one_line(error)) from error
        except self._error as error:
            raise DatabaseDown(_one_line(error)) from error

    def ids(self, ids: Sequence[object]) -> object:
        return list(ids)

    def lock(self, table: str) -> bool:
        statement = "SELECT pg_try_advisory_lock(hashtextextended('outbox_to_nsq ' || %s::regclass::oid, 0))"
        ((is_ours,),) = self.run(statement, quoted_table(table))
        return bool(is_ours)

    def close(self) -> None:
        self._connection.close()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
