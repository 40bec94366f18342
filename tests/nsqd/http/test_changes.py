"""`/changes`: who has changed what, and the lines of the log about it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from nsqd.http.changes import KEPT
from nsqd.http.consuming import PATHS
from tests.nsqd.http.conftest import Nsqd
from tests.support.asgi import ask


def changes(nsqd: Nsqd, query: str = "") -> Any:
    return json.loads(nsqd.get(f"/changes?{query}").body)


def words(nsqd: Nsqd, query: str = "") -> list[tuple[str, str, str, str]]:
    return [(it["what"], it["topic"], it["channel"], it["detail"]) for it in changes(nsqd, query)["changes"]]


@pytest.fixture
def nsqd(nsqd: Nsqd) -> Nsqd:
    nsqd.post("/topic/create?topic=t")
    return nsqd


def test_each_change_is_noted_in_order(nsqd: Nsqd) -> None:
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.post("/channel/pause?topic=t&channel=c")
    nsqd.post("/channel/seek?topic=t&channel=c&from=earliest")
    nsqd.put("/config/log_level", b"info")
    nsqd.post("/drain?retire=true&topic=t")
    nsqd.put("/debug/setblockrate?rate=1")
    assert words(nsqd) == [
        ("create_topic", "t", "", ""),
        ("create_channel", "t", "c", ""),
        ("pause_channel", "t", "c", ""),
        ("seek_channel", "t", "c", "from=earliest"),
        ("set_option", "", "", "option=log_level"),
        ("set_block_rate", "", "", "rate=1"),
    ]


def test_a_drain_is_noted(nsqd: Nsqd) -> None:
    assert nsqd.post("/drain?stay=1s").status == 200
    assert words(nsqd)[-1] == ("drain", "", "", "stay=1s")


@pytest.mark.parametrize(
    "target",
    ["/channel/pause?topic=t&channel=nosuch", "/topic/delete?topic=nosuch", "/topic/create?topic=a+b", "/pub?topic=t"],
)
def test_what_was_refused_or_published_is_no_change(nsqd: Nsqd, target: str) -> None:
    nsqd.post(target, b"x")
    assert len(changes(nsqd)["changes"]) == 1


def test_a_change_names_who_made_it(nsqd: Nsqd) -> None:
    headers = {"user-agent": "nsqadmin", "nsqadmin-user": "ana%20m%C3%BCller"}
    ask(nsqd.app, "POST", "/topic/pause?topic=t", headers=headers)
    change = changes(nsqd)["changes"][-1]
    assert change["at"] > 0
    assert (change["who"], change["remote"]) == ("10.0.0.1:5555", "10.0.0.1:5555")
    assert (change["user"], change["user_agent"]) == ("ana müller", "nsqadmin")


def test_a_change_is_one_line_of_the_log_whatever_is_sent(nsqd: Nsqd, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    headers = {"nsqadmin-user": "eve%0A[nsqd] INFO: all is well", "user-agent": 'a"b'}
    ask(nsqd.app, "POST", "/topic/pause?topic=t", headers=headers)
    (line,) = [it.getMessage() for it in caplog.records if it.getMessage().startswith("CHANGE: pause_topic")]
    assert line == (
        'CHANGE: pause_topic topic="t" channel="" "" who="10.0.0.1:5555" remote=10.0.0.1:5555 '
        r'user="eve\n[nsqd] INFO: all is well" agent="a\"b"'
    )


def test_the_next_question_is_about_what_came_later(nsqd: Nsqd) -> None:
    for name in ("a", "b", "c"):
        nsqd.post(f"/topic/create?topic={name}")
    first = changes(nsqd, "limit=2")
    assert [it["n"] for it in first["changes"]] == [1, 2]
    later = changes(nsqd, f"after={first['next']}")
    assert [it["topic"] for it in later["changes"]] == ["b", "c"]
    assert changes(nsqd, f"after={later['next']}") == {"changes": [], "next": 4}


def test_a_topics_changes_alone(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=other")
    nsqd.put("/config/log_level", b"info")
    assert words(nsqd, "topic=other") == [("create_topic", "other", "", "")]
    assert changes(nsqd, "topic=other")["next"] == 3
    assert changes(nsqd, "topic=other&limit=0")["next"] == 0


def test_a_number_from_before_a_restart_gets_everything(nsqd: Nsqd) -> None:
    assert len(changes(nsqd, "after=1000")["changes"]) == 1


@pytest.mark.parametrize("argument", ["after", "limit"])
@pytest.mark.parametrize("text", ["-1", "x", "", "1" * 20, "²"])
def test_what_is_no_number_is_refused(nsqd: Nsqd, argument: str, text: str) -> None:
    answer = ask(nsqd.app, "GET", f"/changes?{argument}={text.encode().decode('latin-1')}")
    assert (answer.status, answer.body) == (400, b'{"message":"INVALID_ARG_%s"}' % argument.upper().encode())


def test_memory_is_bounded(nsqd: Nsqd) -> None:
    for _ in range(KEPT + 10):
        ask(nsqd.app, "POST", "/topic/pause?topic=t", headers={"user-agent": "x" * 1000})
    kept = changes(nsqd)["changes"]
    assert (len(kept), kept[-1]["n"], len(kept[-1]["user_agent"])) == (KEPT, KEPT + 11, 200)


def test_every_route_that_changes_something_is_noted(nsqd: Nsqd) -> None:
    no_change = {"/pub", "/hmpub", "/mpub", "/topic/reader", "/debug/pprof/symbol", *PATHS}
    for endpoint in nsqd.app.routes:
        assert bool(endpoint.change) == (endpoint.method != "GET" and endpoint.path not in no_change), endpoint.path
