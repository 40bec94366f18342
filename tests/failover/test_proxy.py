"""The proxy in front of an S3 server does to each request what it says, and nothing else."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Iterator

import pytest

from tests.failover.proxy import Fault, StoreProxy
from tests.support.http_server import Reply, Request
from tests.support.lying_s3 import HonestS3
from tests.support.process import eventually


class Server(HonestS3):
    def reply(self, request: Request) -> Reply:
        reply = super().reply(request)
        return Reply(reply.status, reply.body, {**reply.headers, "X-Asked": request.headers["host"]})


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as it:
        yield it


@pytest.fixture
def proxy(server: Server) -> Iterator[StoreProxy]:
    with StoreProxy(server.address, random.Random(0)) as it:
        yield it


def ask(proxy: StoreProxy, method: str, name: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(proxy.address, timeout=30)
    try:
        connection.request(method, name, body, {"If-None-Match": "*"} if method == "PUT" else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def suffer(proxy: StoreProxy, fault: Fault) -> tuple[int, bytes] | None:
    """Send a PUT that has this fault, and return the answer, or None if there is none."""
    proxy.weather.faults = {fault: 1.0}
    try:
        return ask(proxy, "PUT", "/b/name", b"data")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        proxy.weather.faults = {}


def test_without_faults_requests_and_answers_pass_as_they_are(proxy: StoreProxy, server: Server) -> None:
    assert ask(proxy, "PUT", "/b/name", b"data")[0] == 200
    assert ask(proxy, "PUT", "/b/name", b"other")[0] == 412
    assert ask(proxy, "GET", "/b/name") == (200, b"data")
    assert ask(proxy, "GET", "/b/none")[0] == 404
    assert proxy.counts == {"PUT": 2, "GET": 2}


def test_the_server_sees_the_host_that_was_asked_because_it_is_signed(proxy: StoreProxy) -> None:
    connection = http.client.HTTPConnection(proxy.address, timeout=30)
    try:
        connection.request("GET", "/b/name", headers={"Host": "bucket.example"})
        assert connection.getresponse().headers["X-Asked"] == "bucket.example"
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("fault", "answer", "is_stored"),
    [
        (Fault.DROPPED, None, False),
        (Fault.UNANSWERED, None, True),
        (Fault.FAILED, 500, True),
        (Fault.CONFLICT, 409, False),
        (Fault.SLOWED, 503, False),
    ],
)
def test_a_fault_decides_what_is_stored_and_what_is_answered(
    proxy: StoreProxy, server: Server, fault: Fault, answer: int | None, is_stored: bool
) -> None:
    found = suffer(proxy, fault)
    assert (found[0] if found is not None else None) == answer
    assert ("/b/name" in server.objects) == is_stored
    assert proxy.counts[fault] == 1


def test_a_doubled_request_gets_one_of_two_answers(proxy: StoreProxy, server: Server) -> None:
    answers: set[int] = set()
    while len(answers) < 2:
        server.objects.clear()
        found = suffer(proxy, Fault.DOUBLED)
        assert found is not None
        answers.add(found[0])
        assert server.objects == {"/b/name": b"data"}
    assert answers == {200, 412}


def test_a_held_object_arrives_after_its_sender_has_given_up(proxy: StoreProxy, server: Server) -> None:
    proxy.weather.holds_for = 0.05
    assert suffer(proxy, Fault.HELD) is None
    eventually(lambda: "/b/name" in server.objects)


def test_a_held_object_can_be_delivered_at_any_time_and_once(proxy: StoreProxy, server: Server) -> None:
    sender = threading.Thread(target=suffer, args=(proxy, Fault.HELD))
    sender.start()
    eventually(lambda: proxy.counts[Fault.HELD])
    eventually(proxy.deliver_held)
    assert server.objects == {"/b/name": b"data"}
    assert proxy.deliver_held() == 0
    proxy.close()
    sender.join()


def test_a_machine_that_is_cut_off_gets_no_answer_and_changes_nothing(proxy: StoreProxy, server: Server) -> None:
    proxy.weather.is_cut = True
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(proxy, "PUT", "/b/name", b"data")
    assert not server.objects
    proxy.weather.is_cut = False
    assert ask(proxy, "PUT", "/b/name", b"data")[0] == 200


def test_requests_of_a_machine_may_arrive_and_their_answers_not(proxy: StoreProxy, server: Server) -> None:
    proxy.weather.loses_answers = True
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(proxy, "PUT", "/b/name", b"data")
    assert server.objects == {"/b/name": b"data"}


def test_a_silent_store_answers_when_it_is_back(proxy: StoreProxy) -> None:
    proxy.weather.is_silent = True
    answers: list[int] = []
    sender = threading.Thread(target=lambda: answers.append(ask(proxy, "PUT", "/b/name", b"data")[0]))
    sender.start()
    eventually(lambda: proxy.counts["PUT"])
    assert answers == []
    proxy.weather.is_silent = False
    sender.join()
    assert answers == [200]


def test_a_store_may_ask_for_fewer_requests(proxy: StoreProxy, server: Server) -> None:
    proxy.weather.slows_down = True
    status, body = ask(proxy, "GET", "/b/name")
    assert status == 503
    assert b"SlowDown" in body
    assert not server.requests


def test_faults_have_the_shares_that_they_are_given(proxy: StoreProxy) -> None:
    proxy.weather.faults = {Fault.SLOWED: 0.25, Fault.CONFLICT: 0.25}
    statuses = [ask(proxy, "PUT", f"/b/{number}", b"")[0] for number in range(200)]
    counts = [statuses.count(status) for status in (503, 409, 200)]
    assert all(30 < count < 130 for count in counts), counts


def test_a_wire_carries_so_many_bytes_a_second_for_all_together(proxy: StoreProxy) -> None:
    ask(proxy, "PUT", "/b/name", bytes(20_000))
    proxy.weather.rate = 100_000
    began = time.monotonic()
    threads = [threading.Thread(target=ask, args=(proxy, "GET", "/b/name")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.4
