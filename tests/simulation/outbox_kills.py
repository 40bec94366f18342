"""kill -9 of relays, of nsqds, and of Postgres, while an application commits rows to an outbox.

Two relays and two nsqds run. In the end every row of the table is once in its topic, on one of the nsqds: no more, no less.
"""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from tests.support.postgres import Postgres
from tests.support.process import Nsqd, SteadyNsqd
from tests.support.tools import Tool, address, run_tool

_PAGE: Final = 50_000
_TOPICS: Final = ("one", "two")
_SETTLED: Final = 90.0  # seconds that the last rows may take; a relay leaves a failed nsqd alone for up to 30
_LONGEST_DELAY: Final = 2.0  # seconds
_LONGEST_BODY: Final = 3000
_INSERT: Final = "INSERT INTO outbox (topic, body, headers, deliver_at) VALUES ({0}, {0}, {0}, {1})"
_SEEDS: Final = 1 << 30


class Outcome:
    def __init__(self) -> None:
        self.kills: Counter[str] = Counter()
        self.committed = 0
        self.rows = 0
        self.repeated = 0

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {what}" for what, count in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills ({kills}): {self.rows:,} rows, {self.repeated:,} repeated; 0 lost, 0 doubled"
        )


class Database(Protocol):
    """The database of the application."""

    kills: tuple[str, ...]  # what may be killed, besides relays and nsqds
    url: str

    def kill(self) -> None: ...

    def insert(self, rows: list[tuple[str, bytes]], *, commits: bool) -> None:
        """Insert rows in one transaction. Raise an error of the database if it may not have been committed."""

    def ask(self, query: str) -> list[tuple[Any, ...]]: ...


class SQLite:
    kills: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._path = folder / "app.db"
        self.url = f"sqlite:///{self._path}"

    def kill(self) -> None:
        raise AssertionError("there is no server")

    def insert(self, rows: list[tuple[str, bytes]], *, commits: bool) -> None:
        statement = _INSERT.format("?", "strftime('%Y-%m-%d %H:%M:%f', 'now', abs(random() % 3) || ' seconds')")
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(statement, [(topic, body, _headers(body)) for topic, body in rows])
            connection.execute("COMMIT" if commits else "ROLLBACK")

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection:
            return connection.execute(query).fetchall()


class OnPostgres:
    kills: tuple[str, ...] = ("Postgres",)

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.url = server.url

    def kill(self) -> None:
        self._server.kill()
        self._server.start()

    def insert(self, rows: list[tuple[str, bytes]], *, commits: bool) -> None:
        import psycopg

        statement = _INSERT.format("%s", "now() + random() * interval '2 seconds'")
        with closing(psycopg.connect(self.url)) as connection, connection.cursor() as cursor:
            cursor.executemany(statement, [(topic, body, _headers(body)) for topic, body in rows])
            if commits:
                connection.commit()

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        import psycopg

        with closing(psycopg.connect(self.url)) as connection:
            return connection.execute(query).fetchall()


def _headers(body: bytes) -> str:
    return json.dumps({"number": body.partition(b" ")[0].decode()})


def run(
    folder: Path,
    outcome: Outcome,
    *,
    database: str,
    kills: int,
    seed: int,
    environ: Mapping[str, str] | None = None,
    after_kill: Callable[[], None] = lambda: None,
) -> None:
    """Kill something so often. Raise AssertionError, with the seed and the logs, if something is wrong."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        where = _open(database, folder, stack)
        made = run_tool("outbox_to_nsq", "--create-table", f"--database={where.url}")
        assert made.returncode == 0, made.stderr.decode()
        nsqds = [stack.enter_context(_nsqd(folder / f"nsqd{number}")) for number in range(2)]
        with _relays(where, nsqds, environ) as relays:
            try:
                with _application(where, outcome, chance.randrange(_SEEDS)) as committed:
                    for _ in range(kills):
                        time.sleep(chance.choice((chance.uniform(0, 0.1), chance.uniform(0.1, 0.7))))
                        _kill(chance, where, nsqds, relays, outcome)
                        after_kill()
                outcome.committed = len(committed)
                _wait_until_all_is_sent(where)
                outcome.repeated = relays.repeated()
                _compare(where, nsqds, committed, outcome)
            except Exception as error:
                raise AssertionError(f"{relays.log}\n\n{outcome}, seed {seed}: {error!r}") from error


def _open(database: str, folder: Path, stack: ExitStack) -> Database:
    return SQLite(folder) if database == "sqlite" else OnPostgres(stack.enter_context(Postgres()))


@contextmanager
def _nsqd(folder: Path) -> Iterator[Nsqd]:
    with SteadyNsqd(folder, "retention-bytes=10GB") as nsqd:
        yield nsqd


class _Relays:
    """Two relays, one of which works while the other one waits."""

    def __init__(self, arguments: list[str], environ: Mapping[str, str] | None) -> None:
        self._arguments = arguments
        self._environ = environ
        self._ended: list[str] = []
        self._running = [self._start(), self._start()]

    def _start(self) -> Tool:
        return Tool("outbox_to_nsq", *self._arguments, environ=self._environ)

    def kill(self, number: int) -> None:
        relay = self._running[number]
        assert relay.process.poll() is None, f"a relay has ended by itself\n{relay.log}"
        relay.process.kill()
        relay.wait()
        self._ended.append(relay.log)
        self._running[number] = self._start()

    def close(self) -> None:
        for relay in self._running:
            relay.process.kill()
            relay.wait()

    @property
    def log(self) -> str:
        return "\n--\n".join([*self._ended, *(relay.log for relay in self._running)])[-8000:]

    def repeated(self) -> int:
        """Return how many rows were in doubt and were repeated, as far as the lines of the logs tell."""
        logs = [*self._ended, *(relay.log for relay in self._running)]
        return sum(_last_count(log, "repeated") for log in logs)


def _last_count(log: str, what: str) -> int:
    words = next(
        (line.split() for line in reversed(log.splitlines()) if f" {what}" in line and "rows sent" in line), []
    )
    return int(words[words.index(what) - 1]) if words else 0


@contextmanager
def _relays(where: Database, nsqds: list[Nsqd], environ: Mapping[str, str] | None) -> Iterator[_Relays]:
    to = [f"--nsqd-tcp-address={address(nsqd.tcp)}" for nsqd in nsqds]
    relays = _Relays([f"--database={where.url}", *to, "--poll-interval=20ms", "--batch-size=50"], environ)
    try:
        yield relays
    finally:
        relays.close()


@contextmanager
def _application(where: Database, outcome: Outcome, seed: int) -> Iterator[set[bytes]]:
    """Commit rows until the block ends. What is yielded has what was committed for certain."""
    committed: set[bytes] = set()
    stopping = threading.Event()
    chance = random.Random(seed)

    def insert() -> None:
        number = 0
        while not stopping.is_set():
            rows = []
            for _ in range(chance.randint(1, 20)):
                number += 1
                filling = b"." * chance.choice((0, chance.randrange(_LONGEST_BODY)))
                rows.append((chance.choice(_TOPICS), b"%d %b" % (number, filling)))
            commits = chance.random() < 0.9
            try:
                where.insert(rows, commits=commits)
            except Exception:  # the server was killed: whether this is committed, the table tells
                stopping.wait(0.05)
                continue
            if commits:
                committed.update(body for _, body in rows)
            stopping.wait(chance.uniform(0, 0.03))

    thread = threading.Thread(target=insert, daemon=True)
    thread.start()
    try:
        yield committed
    finally:
        stopping.set()
        thread.join(60)
        assert not thread.is_alive(), "inserting did not end"


def _kill(chance: random.Random, where: Database, nsqds: list[Nsqd], relays: _Relays, outcome: Outcome) -> None:
    victim = chance.choice(("relay", "relay", "nsqd", *where.kills))
    if victim == "relay":
        relays.kill(chance.randrange(2))
    elif victim == "nsqd":
        nsqd = chance.choice(nsqds)
        nsqd.kill()
        nsqd.start()
    else:
        where.kill()
    outcome.kills[victim] += 1


def _wait_until_all_is_sent(where: Database) -> None:
    """Wait for the last row, and until everything that was deferred is due, doubled ones too."""
    time.sleep(_LONGEST_DELAY)
    deadline = time.monotonic() + _SETTLED
    while rows := where.ask("SELECT id, node, error FROM outbox WHERE sent_at IS NULL LIMIT 5"):
        assert time.monotonic() < deadline, f"not sent: {rows}"
        time.sleep(0.05)  # another process gives no event to wait for


def _compare(where: Database, nsqds: list[Nsqd], committed: set[bytes], outcome: Outcome) -> None:
    expected = Counter((topic, bytes(body)) for topic, body in where.ask("SELECT topic, body FROM outbox"))
    outcome.rows = expected.total()
    missing = committed - {body for _, body in expected}
    assert not missing, f"the database has lost {len(missing)} rows"
    deadline = time.monotonic() + _SETTLED
    while (found := _published(nsqds)).total() < expected.total() and time.monotonic() < deadline:
        time.sleep(0.1)  # the last deferred ones are in no history before they are due
    lost, doubled = expected - found, found - expected
    assert not lost, f"{lost.total()} of {expected.total()} rows lost: {list(lost)[:3]}"
    assert not doubled, f"{doubled.total()} messages too many: {list(doubled)[:3]}"


def _published(nsqds: list[Nsqd]) -> Counter[tuple[str, bytes]]:
    return Counter((topic, body) for nsqd in nsqds for topic in _TOPICS for body in _bodies(nsqd, topic))


def _bodies(nsqd: Nsqd, topic: str) -> Iterator[bytes]:
    """Yield everything that was ever published to the topic, and is due by now."""
    if nsqd.topic(topic) is None:
        return
    place = 0
    while True:
        answer = nsqd.http("GET", f"/topic/read?topic={topic}&from={place}&to={place + _PAGE}")
        lines = [json.loads(line) for line in answer.body.splitlines()]
        assert not [line for line in lines if "gap" in line], "history has a gap"
        for line in lines:
            if "body" in line:
                assert line["headers"]["number"] == line["body"].partition(" ")[0], line
                yield line["body"].encode()
        if lines[-1]["next"] == place:
            return
        place = lines[-1]["next"]
