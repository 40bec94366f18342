"""A stream reports its progress to nsqd: when, to which node, and that nothing waits for the reports."""

from __future__ import annotations

import json
import socket
import time
from contextlib import closing
from typing import Any

import pytest

from pyspark_nsq.errors import BadOption, Refused
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Lane
from pyspark_nsq.options import Access, Reader, source_options
from pyspark_nsq.source import announcing, queries
from pyspark_nsq.source.announcing import HEARTBEAT, Announcer, Schedule

A, B, OTHER = Lane("n1", "t", "a"), Lane("n1", "u", "b"), Lane("n2", "t", "c")
READER = Reader("archive", "/tables/t", "delta")


def due(schedule: Schedule, now: float, lanes: dict[Lane, int]) -> list[Lane]:
    return list(schedule.due(lanes, now))


def test_what_a_node_knows_is_told_again_only_as_a_sign_of_life() -> None:
    schedule = Schedule()
    assert due(schedule, 0, {A: 5, OTHER: 0}) == [A, OTHER], "zero is a place, too"
    schedule.record_report(A, 5, 0)
    schedule.record_report(OTHER, 0, 0)
    assert due(schedule, 1, {A: 5, OTHER: 0}) == []
    assert due(schedule, 1, {A: 6, OTHER: 0}) == [A]
    assert due(schedule, HEARTBEAT, {A: 5, OTHER: 0}) == [A, OTHER]


def test_a_node_that_fails_is_left_alone_for_a_while_and_told_the_newest() -> None:
    schedule = Schedule()
    schedule.record_failure(A, 0)
    assert due(schedule, 29, {A: 5, B: 5, OTHER: 5}) == [OTHER]
    assert due(schedule, 30, {A: 9, B: 5, OTHER: 5}) == [A, B, OTHER]


def test_a_failure_in_the_middle_of_a_round_spares_the_node_s_other_lanes() -> None:
    schedule = Schedule()
    asked = []
    for lane in schedule.due({A: 5, B: 5, OTHER: 5}, 0):
        asked.append(lane)
        schedule.record_failure(lane, 1) if lane is A else schedule.record_report(lane, 5, 1)
    assert asked == [A, OTHER]


def test_a_node_that_knows_no_readers_is_asked_once() -> None:
    schedule = Schedule()
    schedule.record_refusal(A)
    assert due(schedule, 1e9, {A: 5, B: 5, OTHER: 5}) == [OTHER]


# Reports


class OldNode(Http):
    """An nsqd that does not know readers."""

    def __init__(self) -> None:
        super().__init__(Access())
        self.asked = 0

    def request(self, *arguments: Any, **more: Any) -> Any:
        self.asked += 1
        raise Refused("here:1", 404, "NOT_FOUND", {})


def test_a_node_that_knows_no_readers_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    node = OldNode()
    with closing(Announcer(READER, node, lambda: {A: "here:1"})) as telling:
        for sequence in range(3):
            telling.committed({A: sequence})
            telling.settle(30)
    assert node.asked == 1
    assert len(caplog.records) == 1


def test_nothing_waits_for_a_node_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = f"127.0.0.1:{silent.getsockname()[1]}"
        with closing(Announcer(READER, Http(Access()), lambda: {A: there})) as telling:
            began = time.monotonic()
            telling.committed({A: 5})
            telling.committed({A: 6})
            telling.settle(0.1)
            assert time.monotonic() - began < announcing.PATIENCE


# Names from options and from nsqpipe


def test_into_without_a_name_is_an_error() -> None:
    with pytest.raises(BadOption, match="readerName"):
        source_options({"nsqd": "h:1", "topic": "t", "readerInto": "/t"})


def test_a_command_names_itself_and_where_it_lands() -> None:
    source = queries.reporting(queries.From(topics=("t",), nsqd=("h:1",)), "land", "s3://lake/orders", "delta")
    assert source_options(source.as_options()).reader == Reader("nsqpipe land", "s3://lake/orders", "delta")


def test_who_runs_the_command_has_the_last_word() -> None:
    named = queries.From(topics=("t",), nsqd=("h:1",), options={"readername": "ours"})
    found = source_options(queries.reporting(named, "land", "/t", "delta").as_options()).reader
    assert found == Reader("ours", "/t", "delta")
    unnamed = queries.From(topics=("t",), nsqd=("h:1",), options={"readerName": ""})
    assert source_options(queries.reporting(unnamed, "land", "/t", "delta").as_options()).reader is None


def test_no_password_and_no_endless_path_is_reported() -> None:
    source = queries.From(topics=("t",), nsqd=("h:1",))
    secret = queries.reporting(source, "land", "s3://key:secret@lake/orders", "delta")
    assert "secret" not in json.dumps(dict(secret.options))
    (into,) = [
        text for name, text in queries.reporting(source, "land", "/x" * 4000, "").options.items() if "Into" in name
    ]
    assert (len(into), into[:1]) == (1024, "…")
