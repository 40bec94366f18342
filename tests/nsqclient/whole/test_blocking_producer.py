"""nsqclient's producer on plain sockets, which job libraries publish with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import pytest

from nsqclient import ConnectError, NSQError, PublishRejected
from nsqclient.blocking import BlockingProducer, given_nodes, listed_nodes
from nsqclient.core.config import Config
from tests.nsqclient.whole.reach import SocketLookupd
from tests.support.process import Nsqd, Nsqlookupd, SteadyNsqd, eventually


def address_of(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.tcp[1]}"


def count(nsqd: Nsqd, topic: str) -> int:
    found = nsqd.topic(topic)
    return int(found["message_count"]) if found else 0


def test_a_message_is_accepted_once_it_returns(nsqd: Nsqd, topic: str) -> None:
    producer = BlockingProducer(given_nodes([address_of(nsqd)]))
    producer.publish(topic, b"one", headers={"a": "b"})
    producer.publish(topic, b"two", delay=60)
    producer.close()
    producer.publish(topic, b"three")  # on a new connection
    assert count(nsqd, topic) == 3
    producer.close()


def test_a_key_is_published_once(nsqd: Nsqd, topic: str) -> None:
    producer = BlockingProducer(given_nodes([address_of(nsqd)]))
    for _ in range(2):
        producer.publish(topic, b"once", key="k")
    assert count(nsqd, topic) == 1
    producer.close()


def test_what_nsqd_refuses_is_not_tried_again(start_nsqd: Any, topic: str) -> None:
    nsqd = start_nsqd("max-msg-size=100")
    producer = BlockingProducer(given_nodes([address_of(nsqd)]))
    with pytest.raises(PublishRejected, match="E_BAD_MESSAGE"):
        producer.publish(topic, b"x" * 101)
    producer.publish(topic, b"x")
    assert count(nsqd, topic) == 1
    producer.close()


def test_an_nsqd_that_was_never_there_is_an_error_at_once() -> None:
    producer = BlockingProducer(given_nodes(["127.0.0.1:1"]))
    with pytest.raises(ConnectError):
        producer.publish("topic", b"x")


def test_another_nsqd_gets_what_the_first_cannot(nsqd: Nsqd, topic: str) -> None:
    for _ in range(5):  # the order is random
        producer = BlockingProducer(given_nodes(["127.0.0.1:1", address_of(nsqd)]))
        producer.publish(topic, b"x")
        producer.close()
    assert count(nsqd, topic) == 5


def test_a_restart_of_nsqd_is_waited_for(tmp_path: Path) -> None:
    with SteadyNsqd(tmp_path / "nsqd") as nsqd:
        producer = BlockingProducer(given_nodes([address_of(nsqd)]))
        producer.publish("topic", b"before")
        nsqd.kill()
        nsqd.start()
        producer.publish("topic", b"after")
        assert nsqd.topic("topic")["depth"] == 2
        producer.close()


def test_a_publish_whose_outcome_is_unknown_follows_its_node_to_another_address(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "nsqd") as nsqd, Nsqd(tmp_path / "other") as other:
        producer = BlockingProducer(lambda: {address_of(nsqd): "", address_of(other): "draining"}, retry_timeout=10)
        producer.publish("topic", b"before")
        former = nsqd.tcp
        nsqd.kill()
        nsqd.start()
        assert nsqd.tcp != former
        producer.publish("topic", b"after")
        assert nsqd.topic("topic")["depth"] == 2
        assert other.topic("topic") is None, "it doesn't know the publish's key"
        producer.close()


def test_a_child_publishes_on_its_own_connection_under_its_own_names(nsqd: Nsqd, topic: str) -> None:
    producer = BlockingProducer(given_nodes([address_of(nsqd)]))
    producer.publish(topic, b"parent")
    child = os.fork()
    if not child:
        status = 1
        try:
            producer.publish(topic, b"child")
            status = 0
        finally:
            os._exit(status)
    producer.publish(topic, b"parent again")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert count(nsqd, topic) == 3
    producer.close()


def test_nsqds_are_asked_over_http(nsqd: Nsqd, topic: str) -> None:
    producer = BlockingProducer(given_nodes([address_of(nsqd), "127.0.0.1:1"]))
    answers = producer.ask_all("POST", f"/topic/create?topic={topic}")
    found = answers[address_of(nsqd)]
    assert not isinstance(found, NSQError)
    assert found[0] == 200
    assert isinstance(answers["127.0.0.1:1"], ConnectError)
    assert nsqd.topic(topic) is not None
    producer.close()


def test_nsqlookupd_lists_the_nsqds(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        nodes = listed_nodes([f"127.0.0.1:{lookupd.http_address[1]}", "127.0.0.1:1"], Config())
        options = "broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"
        with Nsqd(tmp_path / "nsqd", *options) as nsqd:
            eventually(lambda: list(nodes()) == [address_of(nsqd)])
            producer = BlockingProducer(nodes)
            producer.publish("topic", b"x")
            assert count(nsqd, "topic") == 1
            producer.close()


def test_nobody_is_forgotten_because_an_nsqlookupd_is_silent_or_empty() -> None:
    one, two = SocketLookupd(), SocketLookupd()
    with one, two:
        nodes = listed_nodes([one.address, two.address], Config())
        one.lists({"broadcast_address": "a", "tcp_port": 1, "http_port": 2, "topics": []})
        two.lists({"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "topics": [], "state": "draining"})
        assert nodes() == {"a:1": "", "b:1": "draining"}
        one.lists()
        two.lists()
        assert list(nodes()) == ["a:1", "b:1"]  # nobody is listed at all
        one.lists({"broadcast_address": "c", "tcp_port": 1, "http_port": 2, "topics": []})
        two.kill()
        assert set(nodes()) == {"a:1", "b:1", "c:1"}


def test_no_answer_is_no_good_news_where_no_nsqd_is_known() -> None:
    producer = BlockingProducer(dict)
    with pytest.raises(ConnectError, match="no nsqd is known"):
        producer.ask_all("GET", "/stats?format=json")


RETRY_TIMEOUT: Final = 2.0


class TakenLock:
    """A lock that another thread has for a while."""

    def __enter__(self) -> None:
        time.sleep(RETRY_TIMEOUT)

    def __exit__(self, *error: object) -> None: ...


def test_the_wait_for_other_threads_counts_as_a_wait_for_nsqd(tmp_path: Path) -> None:
    asked = 0

    def nodes() -> dict[str, str]:
        nonlocal asked
        asked += 1
        return {address: ""}

    with Nsqd(tmp_path / "nsqd") as nsqd:
        address = address_of(nsqd)
        producer = BlockingProducer(nodes, retry_timeout=RETRY_TIMEOUT)
        producer.publish("topic", b"before")
    producer.close()
    asked = 0
    producer._lock = TakenLock()  # type: ignore[assignment]  # it has what is used
    with pytest.raises(ConnectError):
        producer.publish("topic", b"after")
    assert asked == 1
