"""The blocks of docs/how-to/outbox.md that show how to write a row run unchanged."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from nsqtools.outbox_tables import open_outbox
from tests.docs.blocks import shown_in
from tests.support.process import PYTHON, ROOT, needs_module

PAGE = ROOT / "docs" / "how-to" / "outbox.md"
LIMIT = 60

SQLALCHEMY = """
from sqlalchemy import create_engine
place_order(create_engine("sqlite:///app.db"), 4711, 99)
"""
DJANGO = """
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "app.db"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
import django
django.setup()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    outbox = open_outbox(f"sqlite:///{tmp_path}/app.db", "outbox", make=True)
    outbox.create()
    outbox.close()
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, total integer)")
    return tmp_path


def rows(folder: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "app.db")) as connection:
        assert connection.execute("SELECT id, total FROM orders").fetchall() == [(4711, 99)]
        found = connection.execute("SELECT topic, CAST(body AS text), headers FROM outbox").fetchall()
    return [(topic, body, json.loads(headers)) for topic, body, headers in found]


EXPECTED = [("orders", '{"order": 4711}', {"kind": "placed"})]


def run(program: str, folder: Path) -> None:
    (folder / "program.py").write_text(program)
    done = subprocess.run([PYTHON, "program.py"], cwd=folder, capture_output=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr.decode()


def program_with(word: str) -> str:
    (found,) = [it for it in shown_in(PAGE, "python") if word in it]
    return found


def test_plain_sql(folder: Path) -> None:
    insert, *others = shown_in(PAGE, "sql")
    with closing(sqlite3.connect(folder / "app.db")) as connection:
        connection.executescript(insert)
        assert rows(folder) == EXPECTED
        for statement in others:
            connection.executescript(statement)


def test_sqlalchemy(folder: Path) -> None:
    needs_module("sqlalchemy")
    run(program_with("sqlalchemy") + SQLALCHEMY, folder)
    assert rows(folder) == EXPECTED


def test_django(folder: Path) -> None:
    needs_module("django")
    run(DJANGO + program_with("django") + "\n\nplace_order(4711, 99)\n", folder)
    assert rows(folder) == EXPECTED
