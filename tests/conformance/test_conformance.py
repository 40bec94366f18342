"""Each script, on the protocol in memory and on a real process. README.md says how to run them on NSQ's own daemons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance import core, sockets
from tests.conformance.script import Script, encode, parse, quoted, read

ALL = read()
DIFFERENCES = Path(__file__).parents[2] / "docs" / "reference" / "differences.md"


def named(script: Script) -> str:
    return f"{script.server}: {script.title}".replace(" ", "-")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sockets.Servers]:
    with ExitStack() as running:
        started = sockets.Servers(tmp_path_factory.mktemp("servers"), running)
        yield started
        assert "Traceback" not in started.logs


@pytest.mark.parametrize("script", [it for it in ALL if core.can_talk(it)], ids=named)
def test_in_memory(script: Script) -> None:
    assert core.talk(script) == script.expected("ours"), script.place


@pytest.mark.parametrize("script", ALL, ids=named)
def test_on_real_processes(servers: sockets.Servers, script: Script) -> None:
    assert sockets.talk(script, servers.of(script.server)) == script.expected("ours"), script.place


def test_no_two_scripts_have_the_same_title() -> None:
    assert len(set(map(named, ALL))) == len(ALL)


def test_every_script_says_where_its_rule_comes_from() -> None:
    assert [script.place for script in ALL if not script.rules] == []


def test_what_differs_is_in_the_page_of_differences() -> None:
    headings = set(re.findall(r"(?m)^### (.*)$", DIFFERENCES.read_text()))
    for script in ALL:
        assert not script.differs or script.differs in headings, script.place
        assert bool(script.differs) == (script.of("ours") != script.of("nsq")), script.place


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('"a\\n\\x00\\""', b'a\n\0"'),
        ('"é"', "é".encode()),
        ('#5"a"*3', b"\0\0\0\5aaa"),
        ('["ab"]', b"\0\0\0\2ab"),
        ('[#1["a"]]`{"b":"\\n"}`', b'\0\0\0\t\0\0\0\1\0\0\0\1a{"b":"\\n"}'),
        ("end", None),
    ],
)
def test_what_is_sent(text: str, meant: bytes | None) -> None:
    assert encode(text) == meant


@pytest.mark.parametrize("data", [b"", b"plain", b'"', b'`"', b"\\", b"\0\xff\n", bytes(range(256))])
def test_what_is_shown_can_be_sent(data: bytes) -> None:
    assert encode(quoted(data)) == data


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('c< response "NO"', 'c< response "OK"'),
        ('c< error "OK"', 'c< response "OK"'),
        ("c< end", 'c< response "OK"'),
        ('c< message 1 "OK"', 'c< response "OK"'),
    ],
)
def test_another_answer_is_shown(line: str, shown: str) -> None:
    script = given('c> "  V2PUB <topic>\\n"["x"]', line)
    assert core.talk(script)[1:] == [shown]


def test_what_nobody_expects_is_shown() -> None:
    script = given('c> "  V2PUB <topic>\\n"["x"]"SUB <topic> c\\n"', 'c< response "OK"')
    assert core.talk(script)[2:] == ['c< response "OK"']


def test_an_answer_that_does_not_come_is_shown() -> None:
    script = given('c> "  V2NOP\\n"', 'c< response "OK"')
    assert core.talk(script)[1] == "c< nothing"


def given(*lines: str) -> Script:
    (script,) = parse("nsqd", "here", ["== here", *lines])
    return script
