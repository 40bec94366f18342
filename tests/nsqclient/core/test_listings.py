"""nsqlookupd: addresses, parsing of answers, and how several answers become one list."""

from __future__ import annotations

import json
from random import Random

import pytest

from nsqclient import Config, ConfigError
from nsqclient.core.listings import (
    BadAnswer,
    ListedNsqd,
    Listings,
    PollInterval,
    Silence,
    groups_of,
    headers_of,
    parse_lookupd,
    read_answer,
)


def producer(host: str, port: int = 4150) -> dict[str, object]:
    return {"broadcast_address": host, "tcp_port": port, "hostname": "h", "remote_address": "1.2.3.4:5"}


def answer(*hosts: str) -> bytes:
    return json.dumps({"channels": [], "producers": [producer(host) for host in hosts]}).encode()


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("lk:4161", "http://lk:4161/lookup?topic=t1%23ephemeral"),
        ("http://lk:4161/", "http://lk:4161/lookup?topic=t1%23ephemeral"),
        ("http://lk:4161/foo/lookup?extra=1", "http://lk:4161/foo/lookup?extra=1&topic=t1%23ephemeral"),
        ("https://[::1]:4161", "https://[::1]:4161/lookup?topic=t1%23ephemeral"),
    ],
)
def test_the_url_of_a_lookup(text: str, asked: str) -> None:
    place = parse_lookupd(text)
    assert str(place).removesuffix(place.target) + place.query_target("t1#ephemeral") == asked


def test_a_question_that_waits() -> None:
    assert parse_lookupd("lk:4161").query_target("t", wait=60, index="7") == "/lookup?topic=t&wait=60s&index=7"


@pytest.mark.parametrize("text", ["lk", "http://lk", "ftp://lk:1", "http://:4161", "lk:x"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_lookupd(text)


def test_answers_of_both_forms_with_and_without_their_header() -> None:
    plain = answer("a")
    wrapped = json.dumps({"status_code": 200, "data": json.loads(plain)}).encode()
    listed = (ListedNsqd("a:4150", "h", "1.2.3.4:5"),)
    assert read_answer(200, plain) == read_answer(200, wrapped) == listed
    assert read_answer(200, b"") == read_answer(404, b'{"message":"TOPIC_NOT_FOUND"}') == ()
    assert read_answer(200, answer("::1"))[0].address == "[::1]:4150"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b""),
        (200, b"<html>"),
        (200, b'{"producers": [1]}'),
        (200, b"[]"),
        (200, b'{"producers": [{"broadcast_address": "a", "tcp_port": 1e400}]}'),
    ],
)
def test_answers_that_make_no_sense(status: int, body: bytes) -> None:
    with pytest.raises(BadAnswer):
        read_answer(status, body)


def test_the_union_of_what_all_say_and_have_said() -> None:
    one, two = parse_lookupd("a:1"), parse_lookupd("b:1")
    listings = Listings()
    assert listings.record_answer(one, read_answer(200, answer("x", "y")))
    assert listings.record_answer(two, read_answer(200, answer("y", "z")))
    assert not listings.record_answer(two, read_answer(200, answer("y", "z")))
    listings.record_failure(one)
    assert (set(listings.nsqds), listings.failures) == ({"x:4150", "y:4150", "z:4150"}, 1)
    listings.record_answer(one, ())
    assert (set(listings.nsqds), listings.failures) == ({"y:4150", "z:4150"}, 0)


def test_the_secret_is_shown_unless_told_otherwise() -> None:
    shown = ("Authorization", "Bearer it")
    assert shown in headers_of(Config(auth_secret="it"))
    assert shown not in headers_of(Config(auth_secret="it", lookupd_authorization=False))
    assert len(headers_of(Config())) == 1


def test_who_is_asked_side_by_side() -> None:
    texts = ["a:1", "b:1", "http://a:1/lookup"]
    assert [len(group) for group in groups_of(list(map(parse_lookupd, texts)), Config())] == [1, 1]
    assert [len(group) for group in groups_of(list(map(parse_lookupd, texts)), Config(lookupd_strategy="rotate"))] == [
        2
    ]


def test_pauses() -> None:
    pace = PollInterval(Config(lookupd_poll_interval=60, lookupd_poll_jitter=0.3), Random(1))
    pace.record_query(has_answered=True)
    assert 60 <= pace.pause() <= 78
    pace.record_query(has_answered=True)
    assert all(54 <= pace.pause() <= 66 for _ in range(100))
    pauses = []
    for _ in range(8):
        pace.record_query(has_answered=False)
        pauses.append(pace.pause())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_pauses_stay_short_while_no_nsqlookupd_can_be_reached() -> None:
    pace = PollInterval(Config(lookupd_poll_interval=60), Random(1))
    pauses = []
    for _ in range(1000):
        pace.record_query(has_answered=False)
        pauses.append(pace.pause(is_blind=True))
    assert 0.5 <= min(pauses) < 0.6 < 0.9 < max(pauses) <= 1
    assert pace.pause() == 60, "another one answers now"
    pace.record_query(has_answered=True)
    assert pace.pause(is_blind=True) > 50, "this one has answered"


def test_a_short_interval_is_kept_while_no_nsqlookupd_can_be_reached() -> None:
    pace = PollInterval(Config(lookupd_poll_interval=0.1), Random(1))
    pace.record_query(has_answered=False)
    assert pace.pause(is_blind=True) <= 0.1


def test_silence_is_total_when_no_nsqlookupd_answered_its_last_query() -> None:
    one, other = parse_lookupd("a:1"), parse_lookupd("b:1")
    silence = Silence([one, other])
    assert not silence.is_total
    silence.record(one, has_answered=False)
    assert not silence.is_total, "nobody knows yet about the other one"
    silence.record(other, has_answered=False)
    assert silence.is_total
    silence.record(one, has_answered=True)
    assert not silence.is_total


def test_queries_that_are_answered_at_once_instead_of_waiting_get_rare() -> None:
    pace = PollInterval(Config(), Random(1))
    assert [pace.rest(0.01) for _ in range(9)] == [0, 0, 0, 0.1, 0.2, 0.4, 0.8, 1, 1]
    assert [pace.rest(0.2), pace.rest(0.01)] == [0, 0]
