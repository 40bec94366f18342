"""Bounds on the answers of nodes, which may be anybody's, and the messages about answers beyond them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from bench.admin_nodes import Nsqd
from nsqadmin.cluster import node_stats
from nsqadmin.cluster.model import Health, Lookupd, Node, Snapshot
from nsqadmin.cluster.node_stats import read_stats
from nsqadmin.cluster.sane import MOST_CLIENTS, NotUnderstood
from nsqadmin.diagnosis.nodes import about_lookupd, about_node
from nsqadmin.options import Options
from nsqadmin.upstream import sliced_json
from nsqadmin.upstream.discovery import merged_nodes, names_in, producers_in
from nsqadmin.upstream.slices import at_once
from nsqadmin.upstream.unpacking import Body, TooLarge
from tests.support.quick import unless_quick

MOST = Options(lookupd_http_address=("127.0.0.1:1",)).max_answer_size
SNAPSHOT = Snapshot(index=1, taken_at=0.0, interval=5.0, has_lookupds=True)


def received(data: bytes, encoding: str = "", *, most: int = MOST) -> Body:
    body = Body(encoding, most=most)
    at_once(body.receive(data))
    return body


# A body


def test_an_honest_answer_is_far_from_the_bounds() -> None:
    topics = unless_quick(8, quick=2) * 2000
    answer = Nsqd(topics, 3, 0.1).stats(clients=False)
    for body in (received(answer), received(gzip.compress(answer, 1), "gzip")):
        assert body.data == answer
    read = read_stats("n1:4151", at_once(sliced_json.loads(body.data)), at=0.0, has_clients=False)
    assert len(read.topics) == topics


def test_a_bomb_is_unpacked_no_further_than_its_bound() -> None:
    bomb = gzip.compress(b'"' + b"x" * (30 << 20) + b'"', 9)
    assert len(bomb) < 70_000
    body = Body("gzip", most=1 << 20)
    with pytest.raises(TooLarge, match="is larger than 1 MiB"):
        at_once(body.receive(bomb))
    assert len(body.data) < (1 << 20) + 100_000


@pytest.mark.parametrize("element", [b"{},", b"[],", b"0,", b'{"a":1},', b'"",'])
def test_a_small_answer_that_would_take_much_memory_is_refused(element: bytes) -> None:
    with pytest.raises(TooLarge, match="more values than fit into"):
        received(element * (MOST // len(element)))


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd"])
def test_a_packing_that_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(ValueError, match="packed with"):
        received(b"{}", encoding)


def test_what_is_no_gzip_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be unpacked"):
        received(b"<html>", "gzip")


@pytest.mark.parametrize("cut", [0, 5])
def test_what_follows_the_packed_data_is_refused_and_not_kept(cut: int) -> None:
    body, packed = Body("gzip", most=MOST), gzip.compress(b"{}")
    at_once(body.receive(packed[: len(packed) - cut]))
    with pytest.raises(ValueError, match="continues after the end of its packed data"):
        at_once(body.receive(packed[len(packed) - cut :] + b"x" * 65536))


# Contents


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        ([{"topic_name": "t", "channels": [{"channel_name": "c", "clients": [{}] * 100_001}]}], "100,000 clients"),
        ([{"topic_name": "t" * 5000}], "a topic_name of 5,000 characters"),
        ([{"topic_name": "t", "e2e_processing_latency": {"percentiles": [{"quantile": 1}] * 101}}], "100 percentiles"),
    ],
)
def test_an_answer_with_too_much_of_something_is_not_understood(topics: Any, reason: str) -> None:
    with pytest.raises(NotUnderstood, match=reason):
        read_stats("n1:4151", {"topics": topics}, at=0.0)


@pytest.mark.parametrize(
    ("bound", "topics", "reason"),
    [
        ("_MOST_TOPICS", [{"topic_name": f"t{it}"} for it in range(101)], "more than 100 topics"),
        ("_MOST_CHANNELS", [{"topic_name": "t", "channels": [{"channel_name": "c"}] * 101}], "more than 100 channels"),
    ],
)
def test_an_answer_with_too_many_topics_or_channels_is_not_understood(
    monkeypatch: pytest.MonkeyPatch, bound: str, topics: Any, reason: str
) -> None:
    """With a low bound, because a test would take seconds to reach the real one."""
    monkeypatch.setattr(node_stats, bound, 100)
    with pytest.raises(NotUnderstood, match=reason):
        read_stats("n1:4151", {"topics": topics}, at=0.0)


def test_the_page_on_security_states_the_bounds() -> None:
    most = f"{node_stats._MOST_TOPICS:,} topics, {node_stats._MOST_CHANNELS:,} channels, {MOST_CLIENTS:,} clients"
    assert f"| one answer | {most} |\n" in Path("docs/explanation/security.md").read_text(encoding="utf-8")


def producer(number: int, **more: Any) -> dict[str, Any]:
    return {"broadcast_address": f"n{number}", "tcp_port": 4150, "http_port": 4151, "topics": ["t"], **more}


def test_of_many_nodes_the_known_and_the_first_are_taken_and_the_others_counted() -> None:
    document = {"producers": [producer(it) for it in range(1000)]}
    listed = at_once(producers_in(document, most=10, known={"n500:4151"}))
    assert [it.broadcast_address for it in listed.producers] == [*(f"n{it}" for it in range(10)), "n500"]
    assert listed.left_out == 989


def test_ten_thousand_registrations_of_one_node_are_one_node() -> None:
    document = {"producers": [producer(1, remote_address=f"10.0.0.1:{it}") for it in range(10_000)]}
    listed = at_once(producers_in(document, most=10))
    (node,) = merged_nodes([("127.0.0.1:4161", listed.producers)])
    assert len(node.remote_addresses) == len(node.sources) == 100
    assert listed.left_out == 0


def test_topics_of_a_registration_are_not_kept_without_end() -> None:
    document = {"producers": [producer(it, topics=[f"t{n}" for n in range(60_000)]) for it in range(10)]}
    listed = at_once(producers_in(document, most=10))
    assert len(listed.producers) == 10
    assert sum(len(it.topics) for it in listed.producers) <= 200_000


def test_what_a_node_says_of_itself_is_cut() -> None:
    (node,) = at_once(producers_in({"producers": [producer(1, hostname="h" * 100_000)]}, most=1)).producers
    assert len(node.hostname) == 4096


def test_names_are_read_with_pauses() -> None:
    assert sum(1 for _ in names_in({"topics": ["t"] * 100_000}, "topics")) == 20


# Messages


def node(**known: Any) -> Node:
    return Node(address="n1:4151", hostname="n1", broadcast_address="n1", tcp_port=4150, http_port=4151, **known)


def test_a_node_that_is_not_read_is_not_said_to_be_silent() -> None:
    (finding,) = about_node(node(health=Health.DOWN, not_read="its answer is larger than 20 MiB"), SNAPSHOT)
    assert finding.verdict == "n1:4151 is not read: its answer is larger than 20 MiB"


def test_a_node_that_is_asked_without_the_token_is_named_with_the_reason() -> None:
    (finding,) = about_node(node(health=Health.OK, token_withheld="it is not on --nsqd-token-to"), SNAPSHOT)
    assert finding.verdict == "n1:4151 is asked without the token"
    assert [it.value for it in finding.evidence] == ["it is not on --nsqd-token-to"]
    assert "--nsqd-token-to" in finding.advice


def test_an_nsqlookupd_that_lists_too_much_is_named_with_the_numbers() -> None:
    listing = Lookupd(address="l1:4161", health=Health.OK, nodes_left_out=9000, topics_left_out=5)
    (finding,) = about_lookupd(listing)
    assert finding.verdict == "nsqlookupd l1:4161 lists more than is shown"
    assert [it.value for it in finding.evidence] == ["9,000", "5"]
