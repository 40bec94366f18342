"""The HTTP API's exact answers, endpoint by endpoint. Integration tests cover waiting, with real connections."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from nsqcommon.waiting import Waiting
from nsqcommon.wire.lookup import NodeIdentity
from nsqlookupd.http_api import make_app
from nsqlookupd.registry import Peer, Registry
from tests.support.asgi import Answer, ask

IDENTITY = NodeIdentity(
    broadcast_address="host1",
    hostname="h",
    http_port=4151,
    tcp_port=4150,
    topology_region="r",
    topology_zone="z",
    version="1.3.0",
)
ENTRY = (
    b'"remote_address":"10.0.0.5:51234","hostname":"h","broadcast_address":"host1","tcp_port":4150,"http_port":4151,'
    b'"version":"1.3.0","topology_zone":"z","topology_region":"r"'
)
V1_JSON = {"content-type": "application/json; charset=utf-8", "x-nsq-content-type": "nsq; version=1.0"}


class Lookupd:
    def __init__(self) -> None:
        self.now = 0.0
        self.is_ready = True
        self.turns_finished = 0
        self.registry = Registry(inactive_timeout=300, tombstone_lifetime=45, missing_lifetime=60, first_index=1000)
        self.app = make_app(
            self.registry,
            self,
            Waiting(),
            Waiting(),
            max_wait=300,
            connections=lambda: 7,
            is_ready=lambda: self.is_ready,
        )

    def begin(self) -> float:
        self.registry.advance(now=self.now, timestamp=1_700_000_000_000_000_000 + int(self.now))
        return self.now

    def finish(self) -> None:
        self.turns_finished += 1

    def nsqd(self, *registrations: str, id: str = "10.0.0.5:51234", **identity: object) -> Peer:
        self.begin()
        peer = self.registry.connect(id, replace(IDENTITY, **identity))  # type: ignore[arg-type]  # its fields vary
        for words in registrations:
            self.registry.register(peer, *words.split())
        return peer

    def get(self, target: str) -> Answer:
        return ask(self.app, "GET", target)

    def post(self, target: str, body: bytes = b"") -> Answer:
        return ask(self.app, "POST", target, body)


@pytest.fixture
def lookupd() -> Lookupd:
    return Lookupd()


def test_ping(lookupd: Lookupd) -> None:
    answer = lookupd.get("/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers == {"content-length": "2", "content-type": "text/plain; charset=utf-8"}


@pytest.mark.parametrize(("target", "body"), [
    ("/info", b'{"version":"1.3.0"}'),
    ("/topics", b'{"topics":[]}'),
    ("/channels?topic=nosuch", b'{"channels":[]}'),
    ("/channels?topic=", b'{"channels":[]}'),
    ("/channels?topic=*", b'{"channels":[]}'),
    ("/debug", b"{}"),
])  # fmt: skip
def test_answers_of_an_empty_directory(lookupd: Lookupd, target: str, body: bytes) -> None:
    answer = lookupd.get(target)
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers == {**V1_JSON, "content-length": str(len(body))}


@pytest.mark.parametrize("target", ["/nodes", "/nodes?a=%zz"])
def test_nodes_of_an_empty_directory(lookupd: Lookupd, target: str) -> None:
    answer = lookupd.get(target)
    assert (answer.status, answer.body) == (200, b'{"producers":[]}')
    assert answer.headers == {**V1_JSON, "x-nsq-index": "1000", "content-length": "16"}


def test_lookup_tells_channels_and_producers(lookupd: Lookupd) -> None:
    lookupd.nsqd("t c2", "t c1")
    answer = lookupd.get("/lookup?topic=t")
    assert (answer.status, answer.body) == (200, b'{"channels":["c1","c2"],"producers":[{%b}]}' % ENTRY)
    assert answer.headers == {**V1_JSON, "x-nsq-index": "1001", "content-length": str(len(answer.body))}


def test_lookup_of_a_topic_that_nobody_produces(lookupd: Lookupd) -> None:
    lookupd.post("/topic/create?topic=t")
    assert lookupd.get("/lookup?topic=t").body == b'{"channels":[],"producers":[]}'


def test_two_connections_with_one_address_both_appear(lookupd: Lookupd) -> None:
    lookupd.nsqd("t")
    lookupd.nsqd("t", id="10.0.0.6:1")
    assert lookupd.get("/lookup?topic=t").body.count(b'"host1"') == 2


def test_what_a_peer_says_of_itself_is_escaped(lookupd: Lookupd) -> None:
    lookupd.nsqd("t", hostname="<a&b>\u2028é")
    assert '"hostname":"\\u003ca\\u0026b\\u003e\\u2028é"'.encode() in lookupd.get("/lookup?topic=t").body


@pytest.mark.parametrize("topics", [["a"], [f"t{number:05}" for number in range(2001)]])
def test_nodes_tell_the_extensions_of_those_that_have_told_them(lookupd: Lookupd, topics: list[str]) -> None:
    lookupd.nsqd(*topics, extensions=("bury", "keys"))
    lookupd.nsqd("a", id="10.0.0.6:1", broadcast_address="host2")
    answer = lookupd.get("/nodes").body
    first, second = json.loads(answer)["producers"]
    assert (first["extensions"], first["topics"]) == (["bury", "keys"], topics)
    assert "extensions" not in second
    assert b"extensions" not in lookupd.get("/lookup?topic=a").body


def test_nodes_tell_topics_and_tombstones_side_by_side(lookupd: Lookupd) -> None:
    lookupd.nsqd("b", "a")
    assert lookupd.post("/topic/tombstone?topic=b&node=host1:4151").body == b""
    assert lookupd.get("/nodes").body == b'{"producers":[{%b,"tombstones":[false,true],"topics":["a","b"]}]}' % ENTRY
    assert lookupd.get("/lookup?topic=b").body == b'{"channels":[],"producers":[]}'
    lookupd.now = 45
    assert b'"tombstones":[false,false]' in lookupd.get("/nodes").body
    assert ENTRY in lookupd.get("/lookup?topic=b").body


def test_node_that_registers_more_is_told_anew(lookupd: Lookupd) -> None:
    peer = lookupd.nsqd("a")
    lookupd.get("/nodes")
    lookupd.registry.register(peer, "b")
    assert b'"topics":["a","b"]' in lookupd.get("/nodes").body
    lookupd.post("/topic/delete?topic=a")
    assert b'"topics":["b"]' in lookupd.get("/nodes").body


def test_silent_node_is_hidden_but_its_topic_is_not(lookupd: Lookupd) -> None:
    lookupd.nsqd("t")
    lookupd.now = 301
    assert lookupd.get("/nodes").body == b'{"producers":[]}'
    assert lookupd.get("/lookup?topic=t").body == b'{"channels":[],"producers":[]}'
    assert lookupd.get("/topics").body == b'{"topics":["t"]}'


def test_debug_tells_every_registration_that_has_a_producer(lookupd: Lookupd) -> None:
    lookupd.nsqd("t c")
    lookupd.post("/topic/create?topic=unused")
    lookupd.post("/topic/tombstone?topic=t&node=host1:4151")
    entry = (
        b'{"broadcast_address":"host1","hostname":"h","http_port":4151,"id":"10.0.0.5:51234",'
        b'"last_update":1700000000000000000,"tcp_port":4150,"tombstoned":%b,"tombstoned_at":%b,'
        b'"topology_region":"r","topology_zone":"z","version":"1.3.0"}'
    )
    plain, hidden = entry % (b"false", b"0"), entry % (b"true", b"1700000000000000000")
    expected = b'{"channel:t:c":[%b],"client::":[%b],"topic:t:":[%b]}' % (plain, plain, hidden)
    assert lookupd.get("/debug").body == expected
    lookupd.now = 46  # inactive, but still listed
    assert lookupd.get("/debug").body == expected


def test_changes_are_answered_with_nothing(lookupd: Lookupd) -> None:
    for target in ("/channel/create?topic=t&channel=c", "/channel/delete?topic=t&channel=c", "/topic/delete?topic=t"):
        answer = lookupd.post(target)
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers == {"x-nsq-content-type": "nsq; version=1.0", "content-length": "0"}
    assert lookupd.get("/topics").body == b'{"topics":[]}'


@pytest.mark.parametrize(("method", "target", "status", "code"), [
    ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
    ("GET", "/lookup?topic=", 404, "TOPIC_NOT_FOUND"),
    ("GET", "/lookup?topic=nosuch", 404, "TOPIC_NOT_FOUND"),
    ("GET", "/lookup?topic=*", 404, "TOPIC_NOT_FOUND"),
    ("GET", "/lookup?Topic=t", 400, "MISSING_ARG_TOPIC"),
    ("GET", "/lookup?topic=bad%zz", 400, "INVALID_REQUEST"),
    ("GET", "/lookup?topic=t;a=b", 400, "INVALID_REQUEST"),
    ("GET", "/lookup?topic=t&wait=5", 400, "INVALID_ARG_WAIT"),
    ("GET", "/lookup?topic=t&wait=-5s", 400, "INVALID_ARG_WAIT"),
    ("GET", "/lookup?topic=t&wait=", 400, "INVALID_ARG_WAIT"),
    ("GET", "/lookup?topic=t&wait=5s&index=x", 400, "INVALID_ARG_INDEX"),
    ("GET", "/lookup?topic=t&wait=5s&index=-1", 400, "INVALID_ARG_INDEX"),
    ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create?topic=", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/topic/create?topic=a%20b", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/topic/create?topic=*", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/delete?topic=*", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/channel/create?topic=$", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
    ("POST", "/channel/create?topic=t&channel=$", 400, "INVALID_ARG_CHANNEL"),
    ("POST", "/channel/delete?topic=t&channel=", 400, "INVALID_ARG_CHANNEL"),
    ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
    ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
    ("POST", "/topic/tombstone?topic=*&node=a:1", 400, "INVALID_ARG_TOPIC"),
    ("GET", "/nosuch", 404, "NOT_FOUND"),
    ("GET", "/debug/pprof", 404, "NOT_FOUND"),
    ("POST", "/ping", 405, "METHOD_NOT_ALLOWED"),
    ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
    ("HEAD", "/lookup", 405, "METHOD_NOT_ALLOWED"),
])  # fmt: skip
def test_refusals(lookupd: Lookupd, method: str, target: str, status: int, code: str) -> None:
    answer = ask(lookupd.app, method, target)
    assert (answer.status, answer.body) == (status, b'{"message":"%b"}' % code.encode())
    assert V1_JSON.items() <= answer.headers.items()


def test_body_is_not_looked_at(lookupd: Lookupd) -> None:
    assert lookupd.post("/topic/create", b"topic=t").body == b'{"message":"MISSING_ARG_TOPIC"}'


@pytest.mark.parametrize(
    "target", ["/topic/delete?topic=nosuch", "/topic/delete?topic=a%20b", "/topic/tombstone?topic=&node="]
)
def test_what_is_not_there_can_be_deleted_and_buried(lookupd: Lookupd, target: str) -> None:
    assert (lookupd.post(target).status, lookupd.post(target).body) == (200, b"")


def test_first_value_of_an_argument_counts(lookupd: Lookupd) -> None:
    lookupd.post("/topic/create?topic=a%23ephemeral&topic=b")
    assert lookupd.get("/topics").body == b'{"topics":["a#ephemeral"]}'


def test_readiness_ends_with_the_stop(lookupd: Lookupd) -> None:
    assert (lookupd.get("/readyz").status, lookupd.get("/healthz").status) == (200, 200)
    lookupd.is_ready = False
    assert (lookupd.get("/readyz").status, lookupd.get("/healthz").status) == (503, 200)


def test_metrics_count_what_is_there(lookupd: Lookupd) -> None:
    lookupd.nsqd("t c", "u")
    lines = lookupd.get("/metrics").body.decode().splitlines()
    assert {"nsqlookupd_connections 7", "nsqlookupd_peers 1", "nsqlookupd_topics 2", "nsqlookupd_channels 1"} <= set(
        lines
    )
    assert {"nsqlookupd_producers 2", "nsqlookupd_changes_total 2", "# TYPE nsqlookupd_topics gauge"} <= set(lines)


@pytest.mark.parametrize("query", ["wait=30s", "wait=30s&index=1000", "wait=0s&index=1001", "index=1001"])
def test_lookup_does_not_wait_when_there_is_news_or_no_time(lookupd: Lookupd, query: str) -> None:
    lookupd.nsqd("t")
    assert lookupd.get(f"/lookup?topic=t&{query}").headers["x-nsq-index"] == "1001"


@pytest.mark.parametrize("query", ["wait=30s", "wait=30s&index=1000", "wait=0s&index=1001", "index=1001"])
def test_nodes_do_not_wait_when_there_is_news_or_no_time(lookupd: Lookupd, query: str) -> None:
    lookupd.nsqd()
    answer = lookupd.get(f"/nodes?{query}")
    assert (answer.headers["x-nsq-index"], b'"host1"' in answer.body) == ("1001", True)


@pytest.mark.parametrize(
    ("query", "code"), [("wait=soon", "INVALID_ARG_WAIT"), ("wait=1s&index=x", "INVALID_ARG_INDEX")]
)
def test_a_bad_wait_for_nodes_is_refused(lookupd: Lookupd, query: str, code: str) -> None:
    answer = lookupd.get(f"/nodes?{query}")
    assert (answer.status, answer.body) == (400, b'{"message":"%b"}' % code.encode())


@pytest.mark.parametrize("topics", [["a"], ["a", *(f"t{number:05}" for number in range(2001))]])
def test_answers_tell_the_state_of_a_node_that_has_one(lookupd: Lookupd, topics: list[str]) -> None:
    peer = lookupd.nsqd(*topics)

    def told() -> list[str | None]:
        nodes, found = (json.loads(lookupd.get(it).body)["producers"] for it in ("/nodes", "/lookup?topic=a"))
        return [it.get("state") for it in (*nodes, *found)]

    assert told() == [None, None]
    lookupd.registry.set_state(peer, "full")
    assert told() == ["full", "full"], "consumers still find it"
    lookupd.registry.set_state(peer, "")
    assert told() == [None, None]
    assert b"state" not in lookupd.get("/nodes").body


@pytest.mark.parametrize("count", [1, 2001])
def test_nodes_tell_that_one_cannot_be_reached_and_why(lookupd: Lookupd, count: int) -> None:
    peer = lookupd.nsqd(*(f"t{number}" for number in range(count)), extensions=("keys",))

    def told() -> tuple[bool | None, str | None]:
        (node,) = json.loads(lookupd.get("/nodes").body)["producers"]
        assert node["extensions"] == ["keys"]
        return node.get("reachable"), node.get("unreachable")

    assert told() == (None, None)
    assert lookupd.registry.set_reachable(peer, "lookup h: no such host")
    assert told() == (False, "lookup h: no such host")
    assert not lookupd.registry.set_reachable(peer, "dial h:4150: i/o timeout")
    assert told() == (False, "dial h:4150: i/o timeout")
    assert b"reachable" not in lookupd.get("/lookup?topic=t0").body
    assert b"nsqlookupd_unreachable_peers 1" in lookupd.get("/metrics").body
    assert lookupd.registry.set_reachable(peer, "")
    assert told() == (None, None)


# Waiting


async def never() -> None:
    await asyncio.Event().wait()


def test_waiter_is_woken_by_its_topic_and_then_forgotten() -> None:
    async def wait() -> None:
        waiting = Waiting()
        task = asyncio.ensure_future(waiting.wait_for_change("t", seconds=60, gone=never))
        await asyncio.sleep(0)
        waiting.wake("u")
        assert len(waiting) == 1
        waiting.wake("t")
        await task
        assert len(waiting) == 0

    asyncio.run(wait())


def test_waiter_that_leaves_is_forgotten() -> None:
    async def wait() -> None:
        waiting = Waiting()
        leaving = asyncio.Event()

        async def gone() -> None:
            await leaving.wait()

        task = asyncio.ensure_future(waiting.wait_for_change("t", seconds=60, gone=gone))
        await asyncio.sleep(0)
        leaving.set()
        await task
        assert len(waiting) == 0

    asyncio.run(wait())


def test_nobody_waits_once_released() -> None:
    async def wait() -> None:
        waiting = Waiting()
        waiting.release()
        await waiting.wait_for_change("t", seconds=60, gone=never)
        assert len(waiting) == 0

    asyncio.run(wait())


def test_debug_is_sorted_as_its_keys_are_written(lookupd: Lookupd) -> None:
    lookupd.nsqd("a z", "a-b y", "a.c")
    keys = list(json.loads(lookupd.get("/debug").body))
    assert keys == sorted(keys)
    assert keys[:2] == ["channel:a-b:y", "channel:a:z"]


def test_who_has_gone_is_named_to_who_asks_for_it_and_to_nobody_else(lookupd: Lookupd) -> None:
    peer = lookupd.nsqd("t", node="n1")
    lookupd.registry.disconnect(peer)
    assert lookupd.get("/nodes").body == b'{"producers":[]}'
    assert json.loads(lookupd.get("/nodes?missing=true").body) == {
        "producers": [],
        "missing": [
            {
                "broadcast_address": "host1",
                "hostname": "h",
                "tcp_port": 4150,
                "http_port": 4151,
                "version": "1.3.0",
                "node": "n1",
                "since": 1_700_000_000_000_000_000,
                "drained": False,
                "retired": False,
                "topics": ["t"],
            }
        ],
    }


def test_a_turn_ends_though_the_registry_fails(lookupd: Lookupd, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(topic: str) -> None:
        raise RuntimeError(topic)

    monkeypatch.setattr(lookupd.registry, "create_topic", fail)
    assert lookupd.post("/topic/create?topic=orders").status == 500
    assert lookupd.turns_finished == 1
