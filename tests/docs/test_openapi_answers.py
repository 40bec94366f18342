"""Running daemons answer as docs/reference/openapi/ says: each operation is asked at least once, and each answer is checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from nsqcommon.wire import commands
from nsqcommon.wire.headers import encode_headers
from tests.docs.openapi import Api, description_of
from tests.support.json_server import JsonServer
from tests.support.process import Answer, Daemon, Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

T, C = "topic=t", "topic=t&channel=c"
POLICY = (
    '[[policy]]\ntopic = "t"\nmax_attempts = 9\nexpire_after = "24h"\n'
    '[[policy]]\ntopic = "shared"\nchannel = "*"\nshare = "group"\n'
)


class Asker:
    """Asks a daemon, and compares each answer with the description."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.api = Api(description_of(daemon.program))

    def ask(self, method: str, url: str, body: bytes | None = None, **headers: str) -> Answer:
        answer = self.daemon.http(method, url, body, headers=headers)
        return self.api.check(method, url, body, answer)

    def get(self, url: str, **headers: str) -> Answer:
        return self.ask("GET", url, None, **headers)

    def post(self, url: str, body: bytes | str | dict[str, Any] = b"") -> Answer:
        raw = json.dumps(body) if isinstance(body, dict) else body
        return self.ask("POST", url, raw.encode() if isinstance(raw, str) else raw)

    def ids(self, url: str) -> list[str]:
        return [json.loads(line)["id"] for line in self.post(url).body.splitlines()]

    @property
    def unanswered(self) -> set[tuple[str, str]]:
        return {it.key for it in self.api.operations} - self.api.answered


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY, encoding="utf-8")
    (tmp_path / "shared").mkdir()
    options = (
        "broadcast-address=127.0.0.1",
        f"remote=file://{tmp_path}/shared",
        "remote-delay=2ms",
        f"policy-file={policy}",
        "e2e-processing-latency-percentile=0.99",
        "retention-time=1h",
    )
    with Nsqd(tmp_path / "data", *options) as nsqd:
        yield nsqd


def test_nsqd_answers_as_described(nsqd: Nsqd) -> None:
    asker = Asker(nsqd)
    for part in (publishing, consuming, grouping, burying, deferring, history, channels, node, debugging):
        part(asker)
    assert asker.unanswered == set()


def publishing(nsqd: Asker) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post(f"/channel/create?{C}")
    nsqd.ask("POST", f"/pub?{T}", b"one", **{"Nsq-Header-Kind": "x"})
    nsqd.post(f"/pub?{T}&key=k1&defer=3600000", b"later")
    nsqd.post(f"/mpub?{T}", b"two\nthree\n")
    nsqd.post(f"/mpub?{T}&binary=true", commands.mpub("t", [b"\xff\xfe", b"five"]).partition(b"\n")[2][4:])
    nsqd.post(f"/hmpub?{T}", commands.hmpub("t", [(encode_headers({"a": b"\xff"}), b"six")]).partition(b"\n")[2][4:])
    nsqd.post(f"/pub?{T}&defer=never", b"x")
    nsqd.post(f"/pub?{T}")
    nsqd.post("/pub?topic=%20", b"x")


def consuming(nsqd: Asker) -> None:
    one, two, three, four = nsqd.ids(f"/sub?{C}&max=4&lease=30s")
    nsqd.post(f"/fin?{C}", f"{one}\nnonsense\n")
    nsqd.post(f"/req?{C}&free=true", two)
    nsqd.post(f"/touch?{C}&lease=1m", f"{three}\n{one}")
    nsqd.post(f"/bury?{C}&reason=broken", f"{three}\n{four}")
    nsqd.post(f"/sub?{C}&max=0")
    nsqd.post(f"/sub?{C}&wait=forever")
    nsqd.get(f"/sub?{C}")  # without Accept
    streaming(nsqd)


def streaming(nsqd: Asker) -> None:
    """Stream until the channel is deleted."""
    nsqd.post("/channel/create?topic=t&channel=s")
    with ThreadPoolExecutor() as pool:
        stream = pool.submit(nsqd.get, "/sub?topic=t&channel=s", Accept="text/event-stream")
        eventually(lambda: "client_id" in nsqd.get("/stats?format=json").body.decode())
        nsqd.get("/stats?format=json&ages=true")
        nsqd.post("/channel/delete?topic=t&channel=s")
        stream.result(30)


def grouping(nsqd: Asker) -> None:
    at = "topic=shared&channel=c"
    nsqd.post(f"/channel/create?{at}")
    messages = [(encode_headers({"nsq-group": group}), b"x") for group in ("a", "a", "b", "é", "")]
    nsqd.post("/hmpub?topic=shared", commands.hmpub("shared", messages).partition(b"\n")[2][4:])
    nsqd.ids(f"/sub?{at}&max=1")
    (line,) = nsqd.get(f"/channel/inflight?{at}").body.splitlines()
    nsqd.post(f"/touch?{at}", json.loads(line)["id"].encode())
    nsqd.get(f"/channel/inflight?{at}&client=127.0.0.1")
    nsqd.get(f"/channel/inflight?{at}&headers=false&after={json.loads(line)['after']}")
    nsqd.get(f"/channel/inflight?{at}&after=00000000,1,1")
    nsqd.get(f"/channel/inflight?{at}&summary=true")
    nsqd.get("/stats?format=json&topic=shared")
    nsqd.get(f"/channel/groups?{at}")
    nsqd.get(f"/channel/groups?{at}&limit=2000")
    nsqd.get(f"/channel/groups?{C}")
    nsqd.post(f"/channel/due?{at}&group=a&defer=60000")
    nsqd.post(f"/channel/due?{at}&group=a&defer=never")
    nsqd.post(f"/channel/bury?{at}&group=b")
    nsqd.post(f"/channel/cancel?{at}&group={quote('é')}")
    nsqd.post(f"/channel/cancel?{at}&group=")
    nsqd.post(f"/channel/cancel?{C}&group=a")


def burying(nsqd: Asker) -> None:
    first, second = [json.loads(line) for line in nsqd.get(f"/channel/buried?{C}").body.splitlines()]
    nsqd.get(f"/channel/buried?{C}&summary=true")
    kick = nsqd.post(f"/channel/kick?{C}&id={first['id']}").json["kick"]
    nsqd.get(f"/channel/buried?{C}&summary=true")
    nsqd.post(f"/channel/kick/undo?{C}&kick={kick}")
    nsqd.post(f"/channel/kick/undo?{C}&kick={kick}")
    nsqd.post(f"/channel/kick?{C}&rate=0.001&limit=1")
    nsqd.get(f"/channel/jobs?{C}")
    nsqd.post(f"/channel/discard?{C}")  # while the kick is under way
    nsqd.post(f"/channel/jobs/stop?{C}")
    nsqd.get(f"/channel/state?{C}")
    nsqd.post(f"/channel/discard?{C}&sequence={second['sequence']}&sequence=99999")
    nsqd.post(f"/channel/edit?{C}&sequence={second['sequence']}", "edited")
    for _ in range(2):
        again = f"sequence={second['sequence']}&again=true&defer=60000&token=x"
        copy = nsqd.post(f"/channel/edit?{C}&{again}", "edited").json["sequence"]
    nsqd.post(f"/channel/edit?{C}&sequence=99999", "edited")
    nsqd.post(f"/channel/edit?{C}&id={0:016x}", "edited")
    nsqd.post(f"/message/cancel?{C}&sequence={copy}")


def deferring(nsqd: Asker) -> None:
    nsqd.get(f"/channel/deferred?{C}&summary=true")
    (line,) = nsqd.get(f"/channel/deferred?{C}").body.splitlines()
    nsqd.get(f"/channel/deferred?{C}&after={json.loads(line)['after']}")
    nsqd.get(f"/channel/deferred?{C}&after=00000000,1,1")
    nsqd.post(f"/message/due?{T}&key=k1&defer=1800000")
    nsqd.post(f"/message/due?{T}&key=k1")
    nsqd.post(f"/message/cancel?{T}&key=k2")
    nsqd.post(f"/message/cancel?{T}&key=k1&node=another")
    nsqd.post(f"/message/cancel?{T}&key=k1")


def history(nsqd: Asker) -> None:
    eventually(lambda: nsqd.get(f"/topic/log?{T}").json["next"] == 8)
    log = nsqd.get(f"/topic/log?{T}").json["log"]
    nsqd.post(f"/topic/reader?{T}", {"name": "r", "log": log, "sequence": 3})
    nsqd.get(f"/topic/log?{T}&points=6&readers=true")
    nsqd.get(f"/topic/log?{T}&log=another")
    nsqd.get(f"/topic/read?{T}")
    nsqd.get(f"/topic/read?{T}&from=99")
    nsqd.get(f"/topic/read?{T}", Accept="application/msgpack")
    (line, *_) = nsqd.get(f"/topic/read?{T}&limit=1").body.splitlines()
    nsqd.get(f"/message?id={json.loads(line)['id']}")
    nsqd.get("/message?id=1")
    nsqd.get("/message?id=0123456789abcdef&topic=none")
    nsqd.post(f"/topic/reader/delete?{T}&name=r")
    nsqd.post(f"/topic/reader/delete?{T}&name=r")
    nsqd.post(f"/topic/reader?{T}", b"[]")


def channels(nsqd: Asker) -> None:
    state = nsqd.get(f"/channel/state?{C}").json
    nsqd.get(f"/channel/position?{C}")
    nsqd.post(f"/channel/seek?{C}&from=earliest")
    nsqd.post(f"/channel/seek?{C}&from=99")
    nsqd.post(f"/channel/restore?{C}", state)
    nsqd.post(f"/channel/restore?{C}", {**state, "log": "another"})
    nsqd.post(f"/channel/redeliver?{C}&from=0&to=2")
    for verb in ("pause", "unpause", "empty"):
        nsqd.post(f"/channel/{verb}?{C}")
        nsqd.post(f"/topic/{verb}?{T}")
        nsqd.post(f"/channel/{verb}?topic=t&channel=none")
        nsqd.post(f"/topic/{verb}?topic=none")
    nsqd.post("/topic/create?topic=gone")
    nsqd.post("/topic/delete?topic=gone")


def node(nsqd: Asker) -> None:
    for path in ("/ping", "/healthz", "/readyz", "/info", "/stats", "/metrics", "/changes", "/changes?after=x"):
        nsqd.get(path)
    nsqd.get("/remote")
    nsqd.get("/stats?format=json&topic=none")
    nsqd.get("/stats?format=json&ages=true&include_clients=false")
    nsqd.get(f"/config/policy?{C}")
    for option in ("log_level", "nsqlookupd_tcp_addresses", "max_msg_size", "none"):
        nsqd.get(f"/config/{option}")
    nsqd.ask("PUT", "/config/log_level", b"info")
    nsqd.ask("PUT", "/config/log_level", b"loud")
    nsqd.post("/drain?stay=soon")
    nsqd.post("/drain?stay=1h")
    nsqd.get("/readyz")
    nsqd.get("/stats?format=json")
    nsqd.post(f"/pub?{T}", b"x")
    nsqd.post("/undrain")


def debugging(nsqd: Asker) -> None:
    for word in ("", "goroutine", "block", "threadcreate", "heap", "cmdline", "symbol", "profile?seconds=0.05"):
        nsqd.get(f"/debug/pprof/{word}")
    nsqd.get("/debug/pprof/heap?debug=1")
    nsqd.get("/debug/pprof")
    nsqd.post("/debug/pprof/symbol")
    nsqd.ask("PUT", "/debug/setblockrate?rate=x")
    nsqd.ask("PUT", "/debug/setblockrate?rate=1")
    nsqd.post("/debug/freememory")


# Arguments


ARGUMENTS = {
    "topic": "t",
    "channel": "c",
    "node": "n:1",
    "name": "r",
    "from": "earliest",
    "defer": "1",
    "kick": "1",
    "rate": "1",
    "group": "a",
}


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_a_required_argument_that_is_missing_is_refused_with_its_name(program: str, tmp_path: Path) -> None:
    with Nsqd(tmp_path) if program == "nsqd" else Nsqlookupd() as daemon:
        asker = Asker(daemon)
        daemon.post("/topic/create?topic=t")
        daemon.post("/channel/create?topic=t&channel=c")
        for operation in asker.api.operations:
            required = [
                it["name"] for it in asker.api.parameters(operation) if it.get("required") and it["in"] == "query"
            ]
            for missing in required:
                query = urlencode({name: ARGUMENTS[name] for name in required if name != missing})
                answer = asker.ask(operation.method, f"{operation.path}?{query}", b"x", Accept="text/event-stream")
                assert answer.status == 400, (operation.key, missing)
                if operation.path != "/debug/setblockrate":  # which answers in Go's words
                    assert answer.json["message"] == f"MISSING_ARG_{missing.upper()}"


# nsqlookupd


def test_nsqlookupd_answers_as_described(tmp_path: Path) -> None:
    with Nsqlookupd("missing-lifetime=1h", "tombstone-lifetime=1h") as lookupd:
        asker = Asker(lookupd)
        option = f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"
        with Nsqd(tmp_path, option, "broadcast-address=127.0.0.1") as nsqd:
            nsqd.post("/topic/create?topic=t")
            nsqd.post("/channel/create?topic=t&channel=c")
            eventually(lambda: asker.get("/lookup?topic=t").status == 200)
            nsqd.post("/drain?stay=1h")
            eventually(lambda: asker.get("/nodes").json["producers"][0].get("state") == "draining")
            directory(asker, f"127.0.0.1:{nsqd.http_address[1]}")
        eventually(lambda: asker.get("/nodes?missing=true").json["missing"])
        assert asker.unanswered == set()


def directory(lookupd: Asker, node: str) -> None:
    lookupd.get("/lookup?topic=t&wait=0s&index=0")
    lookupd.get("/lookup?topic=t&wait=x")
    lookupd.get("/nodes?wait=1s&index=0")
    lookupd.get("/nodes?wait=1s&index=x")
    for path in ("/topics", "/channels?topic=t", "/ping", "/healthz", "/readyz", "/info", "/metrics", "/debug"):
        lookupd.get(path)
    lookupd.post(f"/topic/tombstone?topic=t&node={node}")
    lookupd.get("/nodes")
    lookupd.get("/debug")
    lookupd.post("/topic/create?topic=u")
    lookupd.post("/topic/create?topic=%20")
    lookupd.post("/channel/create?topic=u&channel=c")
    lookupd.post("/channel/delete?topic=u&channel=c")
    lookupd.post("/channel/delete?topic=u&channel=c")
    lookupd.post("/topic/delete?topic=u")
    lookupd.post("/topic/delete?topic=*")


# nsqadmin


@pytest.fixture
def admin(nsqd: Nsqd) -> Iterator[Asker]:
    needs_module("starlette")
    address = f"127.0.0.1:{nsqd.http_address[1]}"
    with JsonServer(lambda path, arguments: [{"datapoints": [[60, 1]]}]) as graphite:
        options = (f"graphite-url=http://{graphite.address}", "sample-interval=200ms", "enable-publish")
        with Nsqadmin(f"nsqd-http-address={address}", *options) as admin:
            yield Asker(admin)


def test_nsqadmin_answers_as_described(nsqd: Nsqd, admin: Asker) -> None:
    fill(nsqd)
    node = f"127.0.0.1:{nsqd.http_address[1]}"
    eventually(lambda: admin.get("/api/v2/health?fresh=1").json["totals"]["deferred_count"] == 1)
    for part in (of_nsq, looking, messages, jobs, buried, deferred, in_flight, groups, doing):
        part(admin, node)
    assert admin.unanswered == set()


def fill(nsqd: Nsqd) -> None:
    """Have a channel with two messages that wait, two that are buried, and one that is deferred, and a consumer."""
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.post("/mpub?topic=t", b"one\ntwo\nthree\nfour")
    taken = nsqd.http("POST", "/sub?topic=t&channel=c&max=2").body.splitlines()
    nsqd.post("/bury?topic=t&channel=c&reason=broken", "\n".join(json.loads(it)["id"] for it in taken).encode())
    nsqd.post("/pub?topic=t&defer=3600000&key=k", b"later")
    nsqd.connect().subscribe("t", "c", ready=0)
    nsqd.connect().publish("t", b"by tcp")
    nsqd.post("/topic/create?topic=shared")
    nsqd.post("/channel/create?topic=shared&channel=c")
    messages = [(encode_headers({"nsq-group": "a"}), b"x")] * 2
    nsqd.post("/hmpub?topic=shared", commands.hmpub("shared", messages).partition(b"\n")[2][4:])
    nsqd.post("/sub?topic=shared&channel=c&lease=10m")
    nsqd.post("/topic/create?topic=mails")
    nsqd.post("/channel/create?topic=mails&channel=jobs")
    job = encode_headers({"job-name": "shop.send", "job-id": "4711", "job-library": "taskiq"})
    body = b'{"args": [1], "kwargs": {}}'
    nsqd.post("/hmpub?topic=mails", commands.hmpub("mails", [(job, body)]).partition(b"\n")[2][4:])


def of_nsq(admin: Asker, node: str) -> None:
    for path in ("topics", "topics?inactive=true", "topics/t", "topics/t/c", "topics/t/none", "nodes", "counter"):
        admin.get(f"/api/{path}")
    admin.get(f"/api/nodes/{node}")
    admin.get("/api/nodes/none")
    admin.get("/api/graphite?metric=rate&target=x")
    admin.get("/api/graphite?metric=depth")
    admin.post("/api/topics", {"topic": "u", "channel": "c"})
    admin.post("/api/topics")
    assert admin.daemon.http("POST", "/api/topics", b"[]").status == 400  # with a text that is no code
    admin.post("/api/topics", {"topic": " "})
    for path in ("/api/topics/u/c", "/api/topics/u"):
        admin.post(path, {"action": "pause"})
        admin.post(path, {"action": "jump"})
        admin.ask("DELETE", path)
    admin.ask("DELETE", f"/api/nodes/{node}", b'{"topic":"gone"}')
    admin.ask("DELETE", "/api/nodes/none", b'{"topic":"gone"}')


def looking(admin: Asker, node: str) -> None:
    for path in ("me", "snapshot", "topics", "topics/t", "topics/t/c", "topics/none", "nodes", "diagnose"):
        admin.get(f"/api/v2/{path}")
    for path in (
        "diagnose/t",
        "diagnose/t/c",
        "diagnose/none",
        "activity",
        "activity?format=ndjson",
        "activity?limit=0",
    ):
        admin.get(f"/api/v2/{path}")
    admin.get("/api/v2/cells")
    admin.get("/api/v2/cells?scope=nothing")
    for key in ("cluster", "topic:t", "channel:t/c", f"node:{node}", "topic:none"):
        admin.get(f"/api/v2/series?key={key}")
    admin.get("/api/v2/series?span=1y")
    (incident, *_) = eventually(lambda: admin.get("/api/v2/incidents").json["incidents"])
    admin.get(f"/api/v2/incidents/{incident['key']}")
    admin.get("/api/v2/incidents/none")


def messages(admin: Asker, node: str) -> None:
    admin.get("/api/v2/logs/t")
    for query in (
        "from=earliest",
        "from=earliest&format=ndjson",
        "limit=0",
        f"node={node}&from=0",
        "node=none",
        "filter=a%3D",
    ):
        admin.get(f"/api/v2/messages/t?{query}")
    admin.post("/api/v2/messages/t", {"messages": f"0-1@{node}"})
    admin.post("/api/v2/messages/t", {"messages": "x"})
    admin.get("/api/v2/messages/t/c")
    admin.get("/api/v2/messages/t/none")
    admin.get("/api/v2/search/t?filter=one")
    admin.get("/api/v2/search/t?filter=one&format=ndjson")
    admin.get("/api/v2/search/t?cursor=x")
    admin.get("/api/v2/search/t?filter=one&format=ndjson&raw=true")
    for query in (f"node={node}&sequence=0", f"node={node}&sequence=999", "sequence=0", "node=none", "sequence=x"):
        admin.get(f"/api/v2/body/t?{query}")
    admin.get("/api/v2/tail/t?seconds=1")
    admin.post("/api/v2/publish", {"topic": "t", "body": "five"})
    admin.post("/api/v2/publish", {"topic": "t"})
    admin.post("/api/v2/redeliver", {"topic": "t", "channel": "c", "messages": f"0@{node}"})
    admin.post("/api/v2/redeliver", {"topic": "t", "channel": "c", "messages": "x"})
    replay = {"topic": "t", "node": node, "first": 0, "end": 1, "target": "v"}
    for path in ("/api/v2/replay/plan", "/api/v2/replay"):
        admin.post(path, replay)
        admin.post(path, {**replay, "first": 99, "end": 99})


def jobs(admin: Asker, node: str) -> None:
    admin.get("/api/v2/jobs")
    admin.get("/api/v2/jobs/job?topic=mails&id=4711")
    admin.get("/api/v2/jobs/job?topic=mails&id=none")


def buried(admin: Asker, node: str) -> None:
    (first, _) = admin.get("/api/v2/buried/t/c").json["messages"]
    admin.get("/api/v2/buried/t/none")
    channel = {"topic": "t", "channel": "c"}
    admin.post("/api/v2/buried/plan", {**channel, "verb": "discard", "reason": "broken"})
    admin.post("/api/v2/buried", {**channel, "verb": "kick", "messages": f"{first['id']}@{node}"})
    admin.post("/api/v2/buried", {**channel, "verb": "discard"})
    admin.post("/api/v2/buried", {**channel, "verb": "eat"})
    admin.post("/api/v2/buried/stop", channel)


def deferred(admin: Asker, node: str) -> None:
    (one,) = admin.get("/api/v2/deferred/t/c").json["messages"]
    admin.get("/api/v2/deferred/t/none")
    channel = {"topic": "t", "channel": "c"}
    admin.post("/api/v2/deferred/plan", {**channel, "verb": "due", "when": "10m", "filter": ""})
    admin.post("/api/v2/deferred", {**channel, "verb": "cancel", "filter": ""})
    admin.post("/api/v2/deferred", {**channel, "verb": "cancel", "messages": one["pick"]})
    admin.post("/api/v2/deferred", {**channel, "verb": "due", "messages": "x", "when": "now"})


def in_flight(admin: Asker, node: str) -> None:
    (one,) = admin.get("/api/v2/inflight/shared/c").json["messages"]
    assert (one["group"], one["headers"], one["consumer"]["version"]) == ("a", {"nsq-group": "a"}, "HTTP")
    assert admin.get("/api/v2/inflight/t/c?client=none").json["messages"] == []
    admin.get("/api/v2/inflight/t/c?after=x")
    admin.get("/api/v2/inflight/t/none")


def groups(admin: Asker, node: str) -> None:
    admin.get("/api/v2/groups/shared/c")
    admin.get("/api/v2/groups/shared/none")
    channel = {"topic": "shared", "channel": "c"}
    asked = {**channel, "group": "a"}
    for path in ("/api/v2/groups/plan", "/api/v2/groups"):
        burials = admin.post(path, {**asked, "verb": "bury"}).json.get("burials")
        admin.post(path, {**asked, "verb": "eat"})
        admin.post(path, {**asked, "verb": "due", "when": "soon"})
    admin.post("/api/v2/groups/undo", {**channel, "burials": burials})
    admin.post("/api/v2/groups/undo", {**channel, "burials": []})


def doing(admin: Asker, node: str) -> None:
    action = {"kind": "empty_channel", "topic": "t", "channel": "c", "nodes": [node]}
    admin.post("/api/v2/plan", action)
    admin.post("/api/v2/plan", {**action, "kind": "eat"})
    receipt = admin.post("/api/v2/actions", action).json
    for undo in (receipt["undo"], receipt["undo"], "none"):
        admin.post("/api/v2/undo", {"undo": undo})
    admin.post("/api/v2/undo", {})
