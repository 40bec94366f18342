"""outbox_to_nsq with SQLite and with a real Postgres."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from nsqtools.outbox_tables import open_outbox
from tests.planted.planting import with_bug
from tests.planted.table import DEATHS
from tests.support.postgres import Postgres, needs_postgres
from tests.support.process import Nsqd, Nsqlookupd, SteadyNsqd, eventually
from tests.support.tools import LIMIT, Tool, address, last_line, run_tool

both_databases = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
CRASHES: Final = [death.name for death in DEATHS]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    needs_postgres()
    with Postgres() as server:
        yield server


class Database:
    """A database with an outbox, in the same few words for both, and a connection that stays."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.parameter = "?" if url.startswith("sqlite") else "%s"
        self._connection: Any = None

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement and commit it. `?` is a parameter."""
        if self._connection is None:
            self._connection = self._connect()
        cursor = self._connection.execute(statement.replace("?", self.parameter), parameters)
        rows = cursor.fetchall() if cursor.description else []
        self._connection.commit()
        return rows

    def close(self) -> None:
        """Close the connection. The next statement makes another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def insert(self, topic: str | None, *bodies: bytes, **columns: object) -> None:
        names, values = ", ".join(["topic", "body", *columns]), ", ".join("?" * (2 + len(columns)))
        for body in bodies:
            self.run(f"INSERT INTO outbox ({names}) VALUES ({values})", topic, body, *columns.values())

    def is_done(self) -> bool:
        return not self.run("SELECT 1 FROM outbox WHERE sent_at IS NULL AND error IS NULL LIMIT 1")

    def _connect(self) -> Any:
        if self.parameter == "?":
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)
        import psycopg

        return psycopg.connect(self.url)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Yield a database with an empty outbox: SQLite, unless a test asks for both."""
    is_sqlite = getattr(request, "param", "sqlite") == "sqlite"
    url = f"sqlite:///{tmp_path}/app.db" if is_sqlite else request.getfixturevalue("server").url
    with closing(Database(url)) as database:
        if not is_sqlite:
            database.run("DROP TABLE IF EXISTS outbox")
        create_table(database)
        yield database


def create_table(database: Database) -> None:
    outbox = open_outbox(database.url, "outbox", make=True)
    outbox.create()
    outbox.close()


@pytest.fixture(scope="module")
def running_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with SteadyNsqd(tmp_path_factory.mktemp("nsqd"), "retention-bytes=1GB") as nsqd:
        yield nsqd


@pytest.fixture
def nsqd(running_nsqd: Nsqd) -> Nsqd:
    """Return an nsqd without topics."""
    for topic in running_nsqd.stats()["topics"]:
        running_nsqd.post(f"/topic/delete?topic={topic['topic_name']}")
    return running_nsqd


def flags(database: Database, *nsqds: Nsqd) -> tuple[str, ...]:
    to = [f"--nsqd-tcp-address={address(nsqd.tcp)}" for nsqd in nsqds]
    return (f"--database={database.url}", "--poll-interval=20ms", *to)


def relay(database: Database, nsqd: Nsqd, *options: str) -> str:
    """Run a relay until nothing is left to do, and return its log."""
    with Tool("outbox_to_nsq", *flags(database, nsqd), *options) as tool:
        tool.wait_for_log("relaying outbox")
        eventually(database.is_done, LIMIT)
        assert tool.stop(signal.SIGTERM) == 0, tool.log
        return tool.log


def bodies(*nsqds: Nsqd, topic: str = "t") -> list[str]:
    """Return what was ever published to the topic."""
    return [line["body"] for nsqd in nsqds for line in history(nsqd, topic)]


def history(nsqd: Nsqd, topic: str = "t") -> list[Any]:
    """Return the messages of the topic, once the last one is written."""
    found = nsqd.topic(topic)

    def messages() -> list[Any] | None:
        answer = nsqd.http("GET", f"/topic/read?topic={topic}")
        lines = [line for line in map(json.loads, answer.body.splitlines()) if "body" in line]
        return lines if len(lines) >= found["message_count"] else None

    if found is None:
        return []
    eventually(lambda: messages() is not None)
    return messages() or []


@both_databases
def test_rows_reach_their_topics_in_the_order_of_their_ids(database: Database, nsqd: Nsqd) -> None:
    for number in range(30):
        database.insert("t" if number % 3 else "other", b"%d" % number)
    log = relay(database, nsqd, "--batch-size=7")
    assert bodies(nsqd) == [str(number) for number in range(30) if number % 3]
    assert bodies(nsqd, topic="other") == [str(number) for number in range(0, 30, 3)]
    assert "30 rows sent" in log
    ((sent, nodes, keys),) = database.run(
        "SELECT count(sent_at), count(DISTINCT node), count(DISTINCT key) FROM outbox"
    )
    assert (sent, nodes, keys) == (30, 1, 30)


@both_databases
def test_headers_come_with_the_message_and_a_topic_may_be_the_relays(database: Database, nsqd: Nsqd) -> None:
    database.insert(None, b"one", headers=json.dumps({"job-name": "send", "text": "ä"}), key="mine")
    relay(database, nsqd, "--topic=t")
    assert [line["headers"] for line in history(nsqd)] == [{"job-name": "send", "text": "ä"}]
    assert database.run("SELECT key FROM outbox") == [("mine",)]


@both_databases
def test_a_row_with_a_time_is_delivered_then(database: Database, nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    database.insert("t", b"in ten minutes", deliver_at=in_minutes(database, 10))
    database.insert("t", b"in a day", deliver_at=in_minutes(database, 24 * 60))
    database.insert("t", b"long ago", deliver_at=in_minutes(database, -5))
    with Tool("outbox_to_nsq", *flags(database, nsqd)) as tool:
        tool.wait_for_log("2 rows sent")
    channel = nsqd.channel("t", "c")
    assert (channel["deferred_count"], channel["depth"]) == (1, 1)
    assert database.run("SELECT id, error FROM outbox WHERE sent_at IS NULL") == [(2, None)]


def in_minutes(database: Database, minutes: int) -> object:
    moment = (
        f"now() + interval '{minutes} minutes'"
        if database.parameter == "%s"
        else f"datetime('now', '{minutes} minutes')"
    )
    ((found,),) = database.run(f"SELECT {moment}")
    return found


@both_databases
@pytest.mark.parametrize("crash", CRASHES)
def test_a_relay_that_dies_anywhere_neither_loses_nor_doubles(database: Database, nsqd: Nsqd, crash: str) -> None:
    database.insert("t", *(b"%d" % number for number in range(20)))
    died = run_tool("outbox_to_nsq", *flags(database, nsqd), environ=with_bug(crash))
    assert died.returncode == 137, died.stderr.decode()
    relay(database, nsqd)
    assert sorted(bodies(nsqd), key=int) == [str(number) for number in range(20)]


def test_repeat_unknown_publishes_it_again(database: Database, nsqd: Nsqd) -> None:
    database.insert("t", b"one")
    run_tool("outbox_to_nsq", *flags(database, nsqd), environ=with_bug("the relay dies after the claim"))
    database.run("UPDATE outbox SET attempted_at = ?", in_minutes(database, -11))
    relay(database, nsqd)
    with Tool("outbox_to_nsq", *flags(database, nsqd), "--repeat-unknown") as tool:
        eventually(lambda: database.run("SELECT count(sent_at) FROM outbox") == [(1,)], LIMIT)
        tool.wait_for_log("row 1 is published again")
    assert bodies(nsqd) == ["one"]


def test_these_tests_notice_a_relay_that_forgets_its_node(database: Database, nsqd: Nsqd) -> None:
    database.insert("t", b"one")
    run_tool("outbox_to_nsq", *flags(database, nsqd), environ=with_bug("the relay dies before the mark"))
    with Tool(
        "outbox_to_nsq", *flags(database, nsqd), environ=with_bug("the relay forgets to which node it has sent a row")
    ) as tool:
        eventually(database.is_done, LIMIT)
        assert tool.stop(signal.SIGTERM) == 0
    assert bodies(nsqd) == ["one", "one"]


def test_what_is_in_doubt_waits_for_its_node_and_the_others_go_on(
    database: Database, nsqd: Nsqd, tmp_path: Path
) -> None:
    database.insert("t", b"first")
    run_tool("outbox_to_nsq", *flags(database, nsqd), environ=with_bug("the relay dies before the mark"))
    nsqd.kill()
    database.insert("t", b"second")
    with (
        Nsqd(tmp_path / "other", "retention-bytes=1GB") as other,
        Tool("outbox_to_nsq", *flags(database, other)) as tool,
    ):
        eventually(lambda: database.run("SELECT count(sent_at) FROM outbox") == [(1,)], LIMIT)
        nsqd.start()  # which this relay was not told of: the row names it
        eventually(database.is_done, LIMIT)
        tool.wait_for_log("1 repeated")
        assert Counter(bodies(nsqd, other)) == Counter(["first", "second"])


def test_what_could_not_be_repeated_in_time_is_parked_and_said(database: Database, nsqd: Nsqd) -> None:
    database.insert("t", b"one")
    run_tool("outbox_to_nsq", *flags(database, nsqd), environ=with_bug("the relay dies before the mark"))
    database.run("UPDATE outbox SET attempted_at = ?", in_minutes(database, -11))
    log = relay(database, nsqd)
    ((error, node, sent),) = database.run("SELECT error, node, sent_at FROM outbox")
    assert error.startswith("outcome unknown")
    assert (node, sent) == (address(nsqd.tcp), None)
    assert "row 1 is parked: unknown whether" in log
    assert "1 unknown" in log


@both_databases
def test_a_row_that_cannot_be_published_is_parked_and_the_others_go_on(database: Database, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "small", "max-msg-size=100", "retention-bytes=1GB") as nsqd:
        database.insert("t", b"1", b"." * 200, b"2", b"." * 300)
        database.insert("bad name", b"x")
        database.insert(None, b"x")
        database.insert("t", b"")
        database.insert("t", b"x", headers='{"Upper": "case"}')
        database.insert("t", b"3")
        log = relay(database, nsqd)
        assert sorted(bodies(nsqd)) == ["1", "2", "3"]
    errors = dict(database.run("SELECT id, error FROM outbox WHERE error IS NOT NULL"))
    assert sorted(errors) == [2, 4, 5, 6, 7, 8], log
    for id, words in ((2, "too big"), (4, "too big"), (5, "bad name"), (6, "no topic"), (7, "empty"), (8, "header")):
        assert words in errors[id], errors
    assert "row 5 is parked: invalid topic name 'bad name'" in log


@pytest.mark.parametrize(("option", "left"), [("--delete", 0), ("--keep=1h", 1)])
def test_sent_rows_are_deleted_when_asked(database: Database, nsqd: Nsqd, option: str, left: int) -> None:
    database.insert("t", b"old", sent_at=in_minutes(database, -90), node="gone:1")
    database.insert("t", b"new")
    with Tool("outbox_to_nsq", *flags(database, nsqd), option):
        expected = [(1,)]  # the old one, or the new one
        eventually(lambda: database.is_done() and database.run("SELECT count(*) FROM outbox") == expected, LIMIT)
    assert database.run("SELECT count(*) FROM outbox WHERE node <> 'gone:1'") == [(left,)]
    assert bodies(nsqd) == ["new"]


@both_databases
def test_one_relay_works_and_the_next_one_takes_over(database: Database, nsqd: Nsqd) -> None:
    with Tool("outbox_to_nsq", *flags(database, nsqd)) as first:
        first.wait_for_log("relaying outbox")
        with Tool("outbox_to_nsq", *flags(database, nsqd)) as second:
            second.wait_for_log("another relay works on outbox")
            database.insert("t", b"one")
            first.wait_for_log("1 rows sent")
            first.process.kill()
            second.wait_for_log("relaying outbox")
            database.insert("t", b"two")
            second.wait_for_log("1 rows sent")
    assert bodies(nsqd) == ["one", "two"]


def test_nsqds_are_found_by_nsqlookupd(database: Database, tmp_path: Path) -> None:
    with (
        Nsqlookupd() as lookupd,
        Nsqd(
            tmp_path / "listed",
            f"lookupd-tcp-address={address(lookupd.tcp)}",
            "broadcast-address=127.0.0.1",
            "retention-bytes=1GB",
        ) as nsqd,
        Tool(
            "outbox_to_nsq",
            f"--database={database.url}",
            "--poll-interval=20ms",
            f"--lookupd-http-address={address(lookupd.http_address)}",
        ),
    ):
        database.insert("t", b"one")
        eventually(database.is_done, LIMIT)
        assert bodies(nsqd) == ["one"]


def test_a_relay_outlives_its_nsqd(database: Database, nsqd: Nsqd) -> None:
    with Tool("outbox_to_nsq", *flags(database, nsqd)) as tool:
        tool.wait_for_log("relaying outbox")
        nsqd.kill()
        database.insert("t", b"one")
        tool.wait_for_log("connection refused")
        nsqd.start()
        eventually(database.is_done, LIMIT)
    assert bodies(nsqd) == ["one"]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_relay_outlives_postgres(database: Database, server: Postgres, nsqd: Nsqd) -> None:
    with Tool("outbox_to_nsq", *flags(database, nsqd)) as tool:
        tool.wait_for_log("relaying outbox")
        server.kill()
        try:
            tool.wait_for_log("next try in 0.5 s")
        finally:
            server.start()
            database.close()
        database.insert("t", b"one")
        eventually(database.is_done, LIMIT)
    assert bodies(nsqd) == ["one"]


def test_a_busy_sqlite_is_waited_for(database: Database, nsqd: Nsqd, tmp_path: Path) -> None:
    database.insert("t", b"one")
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with Tool("outbox_to_nsq", *flags(database, nsqd)) as tool:
            tool.wait_for_log("database is locked")
            writer.execute("ROLLBACK")
            eventually(database.is_done, LIMIT)
    assert bodies(nsqd) == ["one"]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_ids_may_be_of_other_types(database: Database, nsqd: Nsqd) -> None:
    database.run("DROP TABLE outbox")
    database.run(
        "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text, body jsonb, headers json,"
        " key text, deliver_at timestamptz, node text, attempted_at timestamptz, sent_at timestamptz, error text)"
    )
    database.run("""INSERT INTO outbox (topic, body) VALUES ('t', '{"a": 1}'), ('t', '{"a": 2}'), ('bad name', '1')""")
    relay(database, nsqd)
    assert sorted(bodies(nsqd)) == ['{"a": 1}', '{"a": 2}']
    assert database.run("SELECT error FROM outbox WHERE error IS NOT NULL") == [("invalid topic name 'bad name'",)]


def test_create_table_prints_the_schema_and_makes_it_once(database: Database) -> None:
    for _ in range(2):
        made = run_tool("outbox_to_nsq", "--create-table", f"--database={database.url}", "--table=another")
        assert (made.returncode, made.stderr) == (0, b"")
        assert made.stdout.startswith(b'CREATE TABLE IF NOT EXISTS "another" (')
    database.run("DROP TABLE another")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--database required"),
        (("--database=mysql://x",), "--database required"),
        (("--database=sqlite:///x", "--table=a b"), "invalid table name"),
        (("--database=sqlite:///x",), "--nsqd-tcp-address or --lookupd-http-address required"),
        (("--database=sqlite:///x", "--nsqd-tcp-address=a:1", "--delete", "--keep=1h"), "--delete or --keep"),
        (("--database=sqlite:///x", "--nsqd-tcp-address=a:1", "--poll-interval=0"), "should be positive"),
        (("--database=sqlite:////nowhere/x", "--nsqd-tcp-address=a:1"), "there is no /nowhere/x"),
    ],
)
def test_what_is_refused_at_the_start(options: tuple[str, ...], words: str) -> None:
    result = run_tool("outbox_to_nsq", *options)
    assert result.returncode == 1
    assert words in last_line(result.stderr)


@both_databases
def test_a_missing_table_is_said(database: Database, nsqd: Nsqd) -> None:
    result = run_tool("outbox_to_nsq", *flags(database, nsqd), "--table=nowhere")
    assert result.returncode == 1
    assert "nowhere" in last_line(result.stderr)
