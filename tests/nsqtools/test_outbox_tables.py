"""The statements of outbox_to_nsq on a real SQLite and a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nsqtools.outbox import Unpublishable
from nsqtools.outbox_tables import DatabaseDown, DatabaseWrong, OutboxTable, open_outbox
from tests.support.postgres import Postgres, needs_postgres
from tests.support.process import eventually


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/app.db"


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    needs_postgres()
    with Postgres() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.fixture
def outbox(url: str) -> Iterator[OutboxTable]:
    outbox = open_outbox(url, "outbox", make=True)
    if url.startswith("postgres"):
        ask(outbox, "DROP TABLE IF EXISTS outbox")
    outbox.create()
    outbox.check()
    yield outbox
    outbox.close()


def ask(outbox: OutboxTable, statement: str) -> list[tuple[object, ...]]:
    return outbox._link.run(statement)


def insert(outbox: OutboxTable, count: int) -> None:
    for _ in range(count):
        ask(outbox, "INSERT INTO outbox (topic, body) VALUES ('t', 'x')")


def ids(outbox: OutboxTable, where: str) -> list[object]:
    return [id for (id,) in ask(outbox, f"SELECT id FROM outbox WHERE {where} ORDER BY id")]


def claim(outbox: OutboxTable, count: int = 10, node: str = "n:1") -> list[object]:
    return [row.id for row in outbox.claim(node, count=count, due_within=3600)]


def test_a_claim_takes_each_row_once_in_order_and_gives_it_a_key(outbox: OutboxTable) -> None:
    insert(outbox, 3)
    assert claim(outbox, 2) == [1, 2]
    assert claim(outbox, 2, "n:2") == [3]
    assert claim(outbox, 2) == []
    assert outbox.nodes_in_doubt() == ["n:1", "n:2"]
    rows = outbox.in_doubt("n:1", 10)
    assert [row.id for row in rows] == [1, 2]
    assert len({row.key for row in rows}) == 2
    assert all(len(row.key) == 32 for row in rows)


def test_what_is_sent_is_marked_or_deleted(outbox: OutboxTable) -> None:
    insert(outbox, 2)
    claim(outbox)
    first, second = outbox.in_doubt("n:1", 10)
    outbox.sent([first], delete=False)
    outbox.sent([second], delete=True)
    outbox.sent([], delete=True)
    assert ids(outbox, "sent_at IS NOT NULL AND node = 'n:1'") == [1]
    assert ids(outbox, "1 = 1") == [1]
    assert outbox.nodes_in_doubt() == []


def test_a_released_row_keeps_its_key_and_may_go_elsewhere(outbox: OutboxTable) -> None:
    insert(outbox, 1)
    (row,) = outbox.claim("n:1", count=1, due_within=0)
    outbox.release([row])
    (again,) = outbox.claim("n:2", count=1, due_within=0)
    assert again.key == row.key


def test_refused_rows_are_parked_and_only_doubtful_ones_keep_their_node(outbox: OutboxTable) -> None:
    insert(outbox, 2)
    first, second = outbox.claim("n:1", count=2, due_within=0)
    outbox.refuse(first, "bad", is_certain=True)
    outbox.refuse(second, "unknown", is_certain=False)
    assert ask(outbox, "SELECT node, error FROM outbox ORDER BY id") == [(None, "bad"), ("n:1", "unknown")]
    assert claim(outbox) == []
    assert outbox.send_parked_again() == [2]
    assert claim(outbox) == [2]


@pytest.mark.parametrize("minutes", [-10, 10])
def test_what_is_in_doubt_for_too_long_or_from_the_future_is_given_up(
    outbox: OutboxTable, url: str, minutes: int
) -> None:
    insert(outbox, 2)
    claim(outbox)
    moment = f"datetime('now', '{minutes} minutes')" if "sqlite" in url else f"now() + interval '{minutes} minutes'"
    ask(outbox, f"UPDATE outbox SET attempted_at = {moment} WHERE id = 1")
    assert outbox.give_up("why", 540.0) == [(1, "n:1")]
    assert ask(outbox, "SELECT error FROM outbox WHERE id = 1") == [("why",)]
    ask(outbox, f"UPDATE outbox SET attempted_at = {moment} WHERE id = 2")
    assert outbox.send_again(540.0) == [2]
    assert claim(outbox) == [2]


def test_a_row_waits_in_the_table_until_nsqd_takes_its_delay(outbox: OutboxTable, url: str) -> None:
    moment = "datetime('now', '2 hours')" if "sqlite" in url else "now() + interval '2 hours'"
    ask(outbox, f"INSERT INTO outbox (topic, body, deliver_at) VALUES ('t', 'x', {moment})")
    assert outbox.claim("n:1", count=1, due_within=3600) == []
    (row,) = outbox.claim("n:1", count=1, due_within=3 * 3600)
    assert row.delay is not None
    assert 7100 < row.delay <= 7201


@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # SQLite has no such times
def test_times_without_an_end_stop_no_other_row(outbox: OutboxTable) -> None:
    for moment in ("infinity", "-infinity"):
        ask(outbox, f"INSERT INTO outbox (topic, body, deliver_at) VALUES ('t', 'x', '{moment}')")
    assert claim(outbox) == [2]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # Postgres stores no such text
def test_a_text_that_is_no_utf8_stops_no_other_row(outbox: OutboxTable) -> None:
    ask(outbox, "INSERT INTO outbox (topic, body) VALUES (CAST(x'74ff' AS text), CAST(x'78ff' AS text))")
    insert(outbox, 1)
    first, second = outbox.claim("n:1", count=10, due_within=0)
    with pytest.raises(Unpublishable) as refused:
        first.publication("")
    assert replace(first, topic="t").publication("").body == b"x\xff"
    outbox.refuse(first, str(refused.value), is_certain=True)
    outbox.sent([second], delete=False)
    assert ids(outbox, "error IS NOT NULL") == [1]


def test_old_sent_rows_are_cleaned_up(outbox: OutboxTable, url: str) -> None:
    insert(outbox, 3)
    moment = "datetime('now', '-2 hours')" if "sqlite" in url else "now() - interval '2 hours'"
    ask(outbox, f"UPDATE outbox SET sent_at = {moment} WHERE id = 1")
    claim(outbox, 1)
    outbox.clean_up(3600)
    assert ids(outbox, "1 = 1") == [2, 3]


def test_one_connection_has_the_lock_until_it_ends(outbox: OutboxTable, url: str) -> None:
    assert outbox.lock()
    other = open_outbox(url, "outbox")
    assert not other.lock()
    outbox.close()
    eventually(other.lock)  # Postgres ends a session after its client has gone on
    other.close()


def test_the_lock_of_a_table_with_capitals_in_its_name(url: str) -> None:
    outbox = open_outbox(url, "Outbox", make=True)
    outbox.create()
    assert outbox.lock()
    ask(outbox, 'DROP TABLE "Outbox"')
    outbox.close()


def test_a_table_of_sqlite_has_one_lock_whatever_it_is_called(tmp_path: Path) -> None:
    outbox, other = (open_outbox(f"sqlite:///{tmp_path}/app.db", it, make=True) for it in ("outbox", "main.Outbox"))
    assert outbox.lock()
    assert not other.lock()
    outbox.close()
    other.close()


def test_a_full_disk_passes(tmp_path: Path) -> None:
    outbox = open_outbox(f"sqlite:///{tmp_path}/app.db", "outbox", make=True)
    outbox.create()
    ask(outbox, "PRAGMA max_page_count = 1")
    with pytest.raises(DatabaseDown, match="full"):
        ask(outbox, "INSERT INTO outbox (topic, body) VALUES ('t', zeroblob(100000))")
    outbox.close()


def test_a_lock_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    outbox = open_outbox(f"sqlite:///{tmp_path}/app.db", "outbox", make=True)
    (tmp_path / "app.db.outbox.lock").mkdir()
    with pytest.raises(DatabaseWrong, match=r"app\.db\.outbox\.lock: Is a directory"):
        outbox.lock()
    outbox.close()


def test_a_table_without_the_columns_is_refused(outbox: OutboxTable, url: str) -> None:
    ask(outbox, "CREATE TABLE strange (id integer)")
    strange = open_outbox(url, "strange")
    try:
        with pytest.raises(DatabaseWrong, match=r"topic"):
            strange.check()
    finally:
        strange.close()
        ask(outbox, "DROP TABLE strange")
