"""No route of nsqadmin shows a user what that user may not see.

A number of 16 digits, of its own for each field, is planted in everything that nodes and nsqlookupds send. Users with
fewer rights walk through every route, and through every link on the pages that they get. The routes come from
nsqadmin itself, so that a new one fails the test until it is known here how to ask it. An administrator walks the same
way, and has to find the numbers: otherwise they would be hidden from nobody, or not planted at all.
"""

from __future__ import annotations

import gzip
import http.client
import itertools
import json
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote_plus, urlencode, urlsplit

import pytest

from tests.support.cluster import name_of
from tests.support.json_server import JsonServer
from tests.support.process import PATIENT, Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")
needs_module("jinja2")


LIMIT: Final = 30.0  # seconds for one answer
BURIED: Final = 12  # messages of each channel, each with a reason of its own; each walk kicks one or two
ENCODED: Final = 18  # the sequence of the first message of each topic that nsqadmin decodes
EMPTY: Final = 6  # the sequence of a message of each topic in which nothing is planted
ENOUGH: Final = 2  # links to one path that are followed, as they differ in their arguments only
FORM: Final = {"content-type": "application/x-www-form-urlencoded"}
ROLES: Final = """
[[role]]
name = "everything"
users = ["admin"]
can = ["admin", "payload", "publish", "operator"]

[[role]]
name = "one topic"
users = ["one-topic"]
can = ["admin", "payload", "publish", "operator"]
topics = ["orders"]

[[role]]
name = "no payload"
users = ["no-payload"]
can = ["viewer", "operator", "publish"]
"""
_numbers: Final = itertools.count(4929_0000_0000_0000, 7)
_NUMBER: Final = re.compile(r"4929(?=(\d{12}))")  # also one that begins within another


class Secrets:
    """The numbers by what they stand for."""

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self.by_name.setdefault(name, str(next(_numbers)))

    def named(self, *beginnings: str) -> dict[str, str]:
        return {name: number for name, number in self.by_name.items() if name.startswith(beginnings)}


PLANTED: Final = Secrets()
HIDDEN: Final = f"hidden-{PLANTED['hidden topic']}"
HIDDEN_CHANNEL: Final = f"ch-{PLANTED['hidden channel']}"
GONE: Final = f"gone-{PLANTED['hidden topic that only nsqlookupd knows']}"


# What is planted


def fill(node: Nsqd, topic: str, channel: str, whose: str) -> None:
    """Make a topic with messages that wait, are deferred, buried and leased, a consumer, a producer and a reader."""
    named = f"topic={topic}&channel={channel}"
    node.post(f"/topic/create?topic={topic}")
    node.post(f"/channel/create?{named}")
    agent = {"User-Agent": f"agent-{PLANTED[f'{whose} consumer lease']}"}
    states = (("in flight", ""), ("waiting", ""), ("deferred", "&defer=3600000"), ("second", ""), ("third", ""))
    for state, arguments in states:
        key, value = PLANTED[f"{whose} key {state}"], PLANTED[f"{whose} header {state}"]
        body = json.dumps({"card": PLANTED[f"{whose} body {state}"], "state": state}).encode()
        headers = {"Nsq-Header-card": value, "Nsq-Header-job-name": f"job-{value}"}
        path = f"/pub?topic={topic}&key=key-{key}{arguments}"
        assert node.http("POST", path, body, headers=headers).status == 200
        if state == "in flight":
            answer = node.http("POST", f"/sub?{named}&lease=15m&wait=10s", headers=agent)
            assert answer.body, "the message is leased for as long as the walks take"
    node.post(f"/pub?topic={topic}", b"\xff" + PLANTED[f"{whose} body binary"].encode())
    for _ in range(BURIED):
        node.post(f"/pub?topic={topic}", b"{}")
    taken: list[Any] = []
    while len(taken) < BURIED:
        answer = node.http("POST", f"/sub?{named}&max={BURIED - len(taken)}&wait=1s", headers=agent)
        taken += map(json.loads, answer.body.splitlines())
    for at, message in enumerate(taken):
        reason = quote(f"no such card {PLANTED[f'{whose} reason {at:02}']}")
        assert node.http("POST", f"/bury?{named}&reason={reason}", message["id"].encode()).status == 200
    publish_encoded(node, topic, whose)
    log = node.http("GET", f"/topic/log?topic={topic}").json["log"]
    reader = {"name": f"reader-{PLANTED[f'{whose} reader']}", "log": log, "sequence": 1, "into": "/tables/x"}
    report = json.dumps(reader).encode()
    eventually(lambda: node.http("POST", f"/topic/reader?topic={topic}", report).status == 200)
    consumer = node.connect()
    words = ("client_id", "hostname", "user_agent")
    stays = {"heartbeat_interval": 3_600_000}  # nobody answers, and nsqd would close it after a minute of the walks
    consumer.identify(**stays, **{word: f"{word}-{PLANTED[f'{whose} consumer {word}']}" for word in words})
    consumer.subscribe(topic, channel)
    producer = node.connect()
    producer.identify(**stays, **{word: f"{word}-{PLANTED[f'{whose} producer {word}']}" for word in words})
    producer.publish(topic, b"plain")


def publish_encoded(node: Nsqd, topic: str, whose: str) -> None:
    """Publish bodies that nsqadmin decodes by their headers, and one that does not fit its header."""

    def card(kind: str) -> bytes:
        return PLANTED[f"{whose} body {kind}"].encode()

    msgpack = b"\x82\xa4card\xb0" + card("msgpack") + b"\xa5photo\xc4\x10" + card("msgpack bytes")
    for name, value, body in (
        ("Content-Type", "application/msgpack", msgpack),
        ("Content-Type", "application/msgpack", b'{"card":"' + card("misfit") + b'"}'),
        ("Content-Encoding", "gzip", gzip.compress(b'{"card":"' + card("gzip") + b'"}')),
    ):
        assert node.http("POST", f"/pub?topic={topic}", body, headers={f"Nsq-Header-{name}": value}).status == 200


def directory(node: Nsqd, refusing: str) -> Any:
    """Return what an nsqlookupd answers that knows the node, one that refuses, and a topic that no node has."""
    said = f"topic {HIDDEN} {PLANTED['hidden words of nsqlookupd']}"

    def answer(path: str, arguments: dict[str, str]) -> Any:
        topics = ["orders", HIDDEN]
        told: dict[str, Any] = {
            "broadcast_address": "127.0.0.1",
            "hostname": "h",
            "version": "1.3.0",
            "remote_address": "127.0.0.1:1",
        }
        told |= {"tombstones": [False, True], "topics": topics}
        known = {**told, "tcp_port": node.tcp[1], "http_port": node.http_address[1]}
        unreachable = {"reachable": False, "unreachable": said}
        producers = [
            {**known, **unreachable},
            {**told, "tcp_port": 1, "http_port": int(refusing.rpartition(":")[2]), **unreachable},
        ]
        return {
            "/nodes": {"producers": producers},
            "/lookup": {"producers": producers[:1], "channels": ["c"]},
            "/topics": {"topics": [*topics, GONE]},
            "/channels": {"channels": [HIDDEN_CHANNEL]},
            "/info": {"version": "1.3.0"},
        }.get(path, (404, said))

    return answer


def refuse(path: str, arguments: dict[str, str]) -> Any:
    return 500, f"topic {HIDDEN}: {PLANTED['hidden words of a node']}"


@dataclass
class World:
    node: Nsqd
    refusing: str
    admins: dict[str, Nsqadmin]  # by whether there is a mask


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(tmp_path_factory.mktemp("secrets")) as it:
        yield it
        for admin in it.admins.values():
            assert "Traceback" not in admin.log


@contextmanager
def a_world(folder: Path) -> Iterator[World]:
    policy, roles = folder / "policy.toml", folder / "roles.toml"
    policy.write_text(f'[[policy]]\ntopic = "{HIDDEN}"\nmax_attempts = 9\n')
    roles.write_text(ROLES)
    with ExitStack() as stack:
        node = stack.enter_context(
            Nsqd(
                folder / "n1",
                "broadcast-address=127.0.0.1",
                f"policy-file={policy}",
                "idempotence-window=1h",
                "max-heartbeat-interval=1h",
            )
        )
        fill(node, HIDDEN, HIDDEN_CHANNEL, "hidden")
        fill(node, "orders", "c", "payload")
        policy.write_text(f'[[policy]]\ntopic = "{HIDDEN}"\nodd_{PLANTED["hidden policy"]} = 1\n')
        eventually(lambda: PLANTED["hidden policy"] in json.dumps(node.stats()), LIMIT)
        refusing = stack.enter_context(JsonServer(refuse)).address
        good = stack.enter_context(JsonServer(directory(node, refusing))).address
        bad = stack.enter_context(JsonServer(refuse)).address
        options = [f"lookupd-http-address={good}", f"lookupd-http-address={bad}", f"roles-file={roles}"]
        options += ["sample-interval=1s", "enable-publish", PATIENT]
        admins = {
            "plain": stack.enter_context(Nsqadmin(*options, f"audit-file={folder / 'audit'}")),
            "masked": stack.enter_context(Nsqadmin(*options, r"mask=\d{16}")),
        }
        for admin in admins.values():
            eventually(lambda admin=admin: HIDDEN in ask(admin, "admin", "GET", "/topics?fresh=1").text, LIMIT)
            leave_traces(admin, node)
        yield World(node, refusing, admins)


def leave_traces(admin: Nsqadmin, node: Nsqd) -> None:
    """Let the administrator do what the log of activity tells of."""
    for topic, channel in ((HIDDEN, HIDDEN_CHANNEL), ("orders", "c")):
        whose = "hidden" if topic == HIDDEN else "payload"
        for kind in ("pause_channel", "unpause_channel"):
            body = {"kind": kind, "topic": topic, "channel": channel}
            ask(admin, "admin", "POST", "/api/v2/actions", json.dumps(body))
        body = {"topic": topic, "channel": channel, "verb": "kick"}
        body["reason"] = PLANTED[f"{whose} reason 02"]
        answer = ask(admin, "admin", "POST", "/api/v2/buried", json.dumps(body))
        assert answer.status == 200, answer
    replay = {"topic": HIDDEN, "node": name_of(node), "first": EMPTY, "end": EMPTY + 1, "target": "orders"}
    answer = ask(admin, "admin", "POST", "/api/v2/replay", json.dumps(replay))
    assert (answer.status, json.loads(answer.text)["published"]) == (200, 1), answer


# Asking


@dataclass(frozen=True)
class Page:
    status: int
    kind: str
    text: str

    def shows(self) -> set[str]:
        """Return the planted numbers in the answer, also where it is escaped or Base64."""
        texts = [self.text, unquote_plus(self.text)]
        for word in re.findall(r"[A-Za-z0-9+/]{20,}={0,2}", self.text):
            try:
                texts.append(b64decode(word, validate=True).decode("latin-1"))
            except NotBase64:
                continue
        numbers = {f"4929{it}" for it in _NUMBER.findall("\n".join(texts))}
        return {name for name, number in PLANTED.by_name.items() if number in numbers}


def ask(admin: Nsqadmin, user: str, method: str, target: str, body: str = "") -> Page:
    headers = {"X-Forwarded-User": user} | (FORM if body and not body.startswith("{") else {})
    if target.startswith("/events"):
        return begun(admin, target, headers)
    answer = admin.http(method, target, body.encode() or None, headers=headers, timeout=LIMIT)
    kind = answer.headers.get("content-type", "")
    location = answer.headers.get("location", "")
    return Page(answer.status, kind, unescape(answer.body.decode("utf-8", "replace")) + location)


def begun(admin: Nsqadmin, target: str, headers: dict[str, str]) -> Page:
    """Return the first events of a stream that does not end: all that the page shows."""
    connection = http.client.HTTPConnection(*admin.http_address, timeout=LIMIT)
    connection.request("GET", target, headers=headers)
    response = connection.getresponse()
    lines: list[str] = []
    while response.status == 200 and "event: cells\n" not in lines[:-2]:
        lines.append(response.readline().decode())
    connection.close()
    return Page(response.status, response.headers["content-type"], "".join(lines))


# The routes


def routes() -> list[tuple[str, str]]:
    """Return all routes of an nsqadmin that shows a cluster."""
    from types import SimpleNamespace
    from typing import cast

    from nsqadmin.access import Policy
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.cluster.view import SavedView
    from nsqadmin.daemon import routes_of
    from nsqadmin.diagnosis.incident_book import Book
    from nsqadmin.http.config import Settings
    from nsqadmin.http.live import Hub
    from nsqadmin.messages.masking import Masking
    from nsqadmin.messages.service import Messages
    from nsqadmin.options import Options
    from nsqadmin.services import Services

    unused: Any = SimpleNamespace(has_lookupds=True)
    view, activity, book = cast(SavedView, unused), ActivityLog(), Book()
    services = Services(
        settings=Settings(Options()),
        view=view,
        policy=Policy(),
        access=unused,
        hub=Hub(view, book),
        incidents=book,
        activity=activity,
        queries=unused,
        executor=unused,
        messages=Messages(unused, view, Masking(), activity, all_see_payload=False),
        policies=unused,
    )
    return [(route.method, route.path) for route in routes_of(services)]


BOTH: Final = (("orders", "c"), (HIDDEN, HIDDEN_CHANNEL))
TABS: Final = (
    "overview",
    "channels",
    "consumers",
    "producers",
    "nodes",
    "messages",
    "inflight",
    "deferred",
    "buried",
    "groups",
    "policy",
)
KINDS: Final = (
    "create_topic", "create_channel", "delete_topic", "delete_channel", "empty_topic", "empty_channel", "pause_topic",
    "pause_channel", "unpause_topic", "unpause_channel", "tombstone_topic_producer", "seek_channel", "forget_reader",
)  # fmt: skip
PALETTE: Final = (
    *(f"q={quote(it)}" for it in ("4929", "h", "o", "pause", "pause 4929", "delete", "kick", "a = 1", "a = 1 in 4929")),
    *(f"q=empty&scope={quote(it)}" for it in (f"topic:{HIDDEN}", f"channel:{HIDDEN}/{HIDDEN_CHANNEL}")),
    "q=0123456789abcdef",
    "q=job+4929",
)
_picks: Final = f"pick={HIDDEN}&pick={HIDDEN}/{HIDDEN_CHANNEL}"
# The queries with which a GET is asked besides none. Routes with names in their path need none.
QUERIES: Final[dict[str, tuple[str, ...]]] = {
    "/": ("fresh=1",),
    "/topics/{topic}": (*(f"tab={tab}" for tab in TABS), *(f"tab=messages&open={at}@{{node}}" for at in range(3))),
    "/topics/{topic}/{channel}": (
        *(f"tab={tab}" for tab in TABS),
        "tab=buried&reason=no",
        "tab=buried{reason}",
        *(
            f"tab={tab}&open={at}@{{node}}"
            for tab in ("buried", "deferred", "messages", "inflight")
            for at in (0, 2, 9)
        ),
        "tab=inflight&client=127.0.0.1",
        "tab=inflight&client=4929",
        "tab=inflight&after=4929",
        "tab=consumers&client=127.0.0.1",
    ),
    "/consumers": ("group=none",),
    "/jump": PALETTE,
    "/find": PALETTE,
    "/nodes/forget": ("node={refusing}",),
    "/nodes/drain": ("node={node}",),
    "/buried": tuple(f"topic={t}&channel={c}&node={{node}}&sequence={at}" for t, c in BOTH for at in range(4)),
    "/deferred": tuple(f"topic={t}&channel={c}&node={{node}}&sequence={at}" for t, c in BOTH for at in range(4)),
    "/message": tuple(
        f"topic={t}&node={{node}}&sequence={at}{form}"
        for t, _ in BOTH
        for at, form in ((0, ""), (1, ""), (2, ""), (ENCODED, ""), (ENCODED, "&as=base64"), (ENCODED + 1, ""))
    ),
    "/api/v2/body/{topic}": tuple(f"node={{node}}&sequence={at}" for at in (0, ENCODED)),
    "/actions/several": tuple(f"do={verb}&pick=orders&pick=orders/c&{_picks}" for verb in ("pause", "empty", "delete")),
    "/incidents/mark": ("do=mute&pick={keys}",),
    "/tail/{topic}": ("seconds=1",),
    "/api/v2/tail/{topic}": ("seconds=1",),
    "/api/v2/messages/{topic}": (
        "from=earliest",
        "from=earliest&format=ndjson",
        "from=earliest&filter=4929",
        "from=earliest&raw=true",
    ),
    "/api/v2/messages/{topic}/{channel}": ("format=ndjson",),
    "/api/v2/search/{topic}": ("filter=no", "format=ndjson", "filter=" + quote("@key ~ 4929")),
    "/api/v2/deferred/{topic}/{channel}": ("filter=4929", "format=ndjson"),
    "/api/v2/inflight/{topic}/{channel}": ("client=127.0.0.1", "client=4929", "limit=1"),
    "/api/v2/buried/{topic}/{channel}": ("reason=no", "reason=4929"),
    "/api/v2/series": tuple(
        f"key={quote(it)}"
        for it in ("cluster", f"topic:{HIDDEN}", f"channel:{HIDDEN}/{HIDDEN_CHANNEL}", "topic:orders")
    ),
    "/api/v2/activity": ("format=ndjson", f"topic={HIDDEN}"),
    "/api/topics": ("inactive=true",),
    "/api/graphite": ("metric=rate&target=x",),
    "/events": tuple(
        f"scope={quote(it)}"
        for it in ("overview", "topics", "lookup", "nodes", f"topic:{HIDDEN}", f"channel:{HIDDEN}/{HIDDEN_CHANNEL}")
    ),
    "/api/v2/cells": ("scope=topics", "scope=lookup", f"scope=topic:{HIDDEN}"),
    "/actions/{kind}": tuple(f"topic={t}&channel={c}&node={{node}}" for t, c in BOTH),
    "/actions/publish": tuple(f"topic={t}" for t, _ in BOTH),
    "/actions/replay": tuple(f"topic={t}&node={{node}}&first=0&end=3" for t, _ in BOTH),
    "/actions/edit": tuple(f"topic={t}&channel={c}&node={{node}}&sequence=0" for t, c in BOTH),
    "/actions/redeliver": tuple(f"topic={t}&channel={c}&task=t" for t, c in BOTH),
    "/actions/retry_task": tuple(f"topic={t}&channel={c}&task=t" for t, c in BOTH),
    "/actions/kick_buried": tuple(f"topic={t}&channel={c}{{reason}}" for t, c in BOTH),
    "/actions/discard_buried": tuple(f"topic={t}&channel={c}{{reason}}" for t, c in BOTH),
    "/actions/bury_group": tuple(f"topic={t}&channel={c}&group=acme" for t, c in BOTH),
    "/actions/cancel_group": tuple(f"topic={t}&channel={c}&group=acme" for t, c in BOTH),
    "/actions/move_group": tuple(f"topic={t}&channel={c}&group=acme" for t, c in BOTH),
}
# Routes that need not answer the administrator with 200, and why.
REFUSED: Final = {
    "/api/graphite": "there is no graphite",
    "/actions/redeliver": "no worker has reported a failed job",
}
# What is sent to change something, by route. Nothing of `orders` is deleted: the walk has to go on.
_here: Final = tuple({"topic": t, "channel": c} for t, c in BOTH)
_forms: Final = tuple(urlencode(it) for it in _here)
CHANGES: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("POST", "/api/v2/plan"): tuple(
        json.dumps({"kind": kind, **it}) for it in _here for kind in ("empty_channel", "delete_topic", "pause_topic")
    ),
    ("POST", "/api/v2/actions"): tuple(json.dumps({"kind": "pause_channel", **it}) for it in _here),
    ("POST", "/api/v2/undo"): ('{"undo":"x"}',),
    ("POST", "/api/v2/buried/plan"): tuple(
        json.dumps({"verb": verb, **it}) for it in _here for verb in ("kick", "discard")
    ),
    ("POST", "/api/v2/buried"): tuple(json.dumps({"verb": "kick", "limit": 1, "rate": 0.1, **it}) for it in _here),
    ("POST", "/api/v2/buried/stop"): tuple(json.dumps(it) for it in _here),
    ("POST", "/api/v2/deferred/plan"): tuple(
        json.dumps({"verb": "cancel", "messages": "0-9@{node}", **it}) for it in _here
    ),
    ("POST", "/api/v2/deferred"): tuple(
        json.dumps({"verb": "due", "when": "1h", "messages": "0-9@{node}", **it}) for it in _here
    ),
    ("POST", "/api/v2/publish"): tuple(json.dumps({"topic": it["topic"], "body": "b"}) for it in _here),
    ("POST", "/api/v2/redeliver"): tuple(json.dumps({"messages": "0@{node}", **it}) for it in _here),
    ("POST", "/api/v2/replay/plan"): tuple(
        json.dumps({"topic": it["topic"], "node": "{node}", "first": EMPTY, "end": EMPTY + 1, "target": "orders"})
        for it in _here
    ),
    ("POST", "/api/v2/replay"): tuple(
        json.dumps({"topic": it["topic"], "node": "{node}", "first": EMPTY, "end": EMPTY + 1, "target": "orders"})
        for it in _here
    ),
    ("POST", "/api/topics"): (json.dumps({"topic": HIDDEN}), json.dumps({"topic": "orders"})),
    ("POST", "/api/topics/{topic}"): ('{"action":"unpause"}',),
    ("POST", "/api/topics/{topic}/{channel}"): ('{"action":"unpause"}',),
    ("DELETE", "/api/topics/{topic}"): (),
    ("DELETE", "/api/topics/{topic}/{channel}"): (),
    ("DELETE", "/api/nodes/{node}"): (json.dumps({"topic": HIDDEN}),),
    ("PUT", "/config/{option}"): ("info",),
    ("POST", "/nodes/forget"): ("node=nobody:1",),
    ("POST", "/nodes/drain"): ("node=nobody:1",),
    ("POST", "/nodes/undrain"): ("node={node}",),
    ("POST", "/actions/{kind}"): ("topic=nothing&channel=c",),
    ("POST", "/actions/publish"): tuple(f"{it}&body=b" for it in _forms),
    ("POST", "/actions/replay"): tuple(f"{it}&node={{node}}&first={EMPTY}&end={EMPTY + 1}&to=channel" for it in _forms),
    ("POST", "/actions/redeliver"): tuple(f"{it}&pick=0@{{node}}&to=channel" for it in _forms),
    ("POST", "/actions/edit"): tuple(f"{it}&node={{node}}&sequence=0&body=b" for it in _forms),
    ("POST", "/actions/retry_task"): tuple(f"{it}&task=t" for it in _forms),
    ("POST", "/actions/stop_retry"): tuple(f"{it}&retry=x" for it in _forms),
    ("POST", "/actions/undo"): ("undo=x",),
    ("POST", "/actions/several"): (f"do=unpause&pick=orders/c&{_picks}&confirmed=yes",),
    ("POST", "/incidents/mark"): ("do=mute&for=15m&pick={keys}",),
    ("POST", "/api/v2/messages/{topic}"): (json.dumps({"messages": "0-2@{node}"}),),
    ("POST", "/actions/kick_buried"): tuple(f"{it}{{reason}}&limit=1&rate=0.1" for it in _forms),
    ("POST", "/actions/discard_buried"): tuple(f"{it}{{reason}}&limit=1" for it in _forms),
    ("POST", "/actions/stop_buried"): _forms,
    ("POST", "/actions/undo_kick"): tuple(f"{it}&kick=1@{{node}}" for it in _forms),
    ("POST", "/actions/cancel_deferred"): tuple(f"{it}&all=yes" for it in _forms),
    ("POST", "/actions/move_deferred"): tuple(f"{it}&all=yes&when=1h" for it in _forms),
    ("POST", "/api/v2/groups/plan"): tuple(json.dumps({"verb": "bury", "group": "acme", **it}) for it in _here),
    ("POST", "/api/v2/groups"): tuple(json.dumps({"verb": "bury", "group": "acme", **it}) for it in _here),
    ("POST", "/api/v2/groups/undo"): tuple(json.dumps({"burials": ["why@{node}"], **it}) for it in _here),
    ("POST", "/actions/bury_group"): tuple(f"{it}&group=acme&confirmed=yes" for it in _forms),
    ("POST", "/actions/cancel_group"): tuple(f"{it}&group=acme&confirmed=yes&typed=acme" for it in _forms),
    ("POST", "/actions/move_group"): tuple(f"{it}&group=acme&confirmed=yes&when=1h" for it in _forms),
    ("POST", "/actions/undo_bury_group"): tuple(f"{it}&burial=why@{{node}}" for it in _forms),
    ("POST", "/incidents/{key}/mark"): ("do=mute&for=15m",),
}


@dataclass
class Walk:
    """All that one user gets to see."""

    admin: Nsqadmin
    user: str
    world: World
    shown: dict[str, str] = field(default_factory=dict)  # by planted number: where it was seen first
    answered: set[str] = field(default_factory=set)  # routes
    known: set[str] = field(default_factory=set)  # links as pages have them
    seen: set[str] = field(default_factory=set)  # links without what is the same in all views
    links: list[str] = field(default_factory=list)
    followed: Counter[str] = field(default_factory=Counter)  # links, by path

    def go(self) -> None:
        found = routes()
        for method, path in found:
            if method == "GET":
                self._read(path)
        while self.links:
            link = self.links.pop()
            if self._ask("GET", link, "").status == 200:
                self.answered.add(urlsplit(link).path)
        for method, path in found:
            if method != "GET":
                self._change(method, path)
        for path in ("/activity", "/api/v2/activity", "/api/v2/snapshot"):  # what has been done now
            self._ask("GET", path, "")

    def _read(self, path: str) -> None:
        for target in self._targets(path):
            if "/tail/" in path and HIDDEN in target and self.user == "admin":
                continue  # it takes a second, and shows what other pages show
            for query in QUERIES[path] if "/tail/" in path else ("", *QUERIES.get(path, ())):
                whole = f"{target}?{self._filled(query)}" if query else target
                if self._ask("GET", whole, "").status == 200:
                    self.answered.add(path)

    def _change(self, method: str, path: str) -> None:
        assert (method, path) in CHANGES, f"say in CHANGES how to ask {method} {path}"
        for target in self._targets(path):
            if method == "DELETE" and "orders" in target:
                continue
            for body in CHANGES[method, path] or ("",):
                self._ask(method, target, self._filled(body))

    def _ask(self, method: str, target: str, body: str) -> Page:
        page = ask(self.admin, self.user, method, target, body)
        assert page.status != 500 or target.startswith("/api/graphite"), (method, target, body, page)
        # A refusal may repeat what was asked.
        said = {name for name in page.shows() if PLANTED[name] not in unquote_plus(target + body)}
        for name in said:
            self.shown.setdefault(name, f"{method} {target} {body}")
        if page.kind.startswith("text/html"):
            found = set(re.findall(r'(?:href|action|formaction|src)="([^"]+)"', page.text))
            for link in sorted(found - self.known):
                self._remember(link)
            self.known |= found
        return page

    def _remember(self, link: str) -> None:
        parts = urlsplit(link)
        # One of each view is enough.
        query = [(name, value) for name, value in parse_qsl(parts.query) if name not in ("span", "as", "from", "log")]
        target = parts.path + ("?" + urlencode(query) if query else "")
        is_ours = link.startswith("/") and not link.startswith(
            ("/events", "/static", "/fonts", "/api/v2/tail", "/tail")
        )
        if is_ours and target not in self.seen and not re.search(r"[?&]sort[a-z-]*=", target):
            self.seen.add(target)
            self.followed[parts.path] += 1
            if self.followed[parts.path] <= ENOUGH:
                self.links.append(target)

    def _targets(self, path: str) -> Iterator[str]:
        words = {
            "{topic}/{channel}": tuple("/".join(quote(it) for it in pair) for pair in BOTH),
            "{topic}": ("orders", HIDDEN),
            "{node}": (name_of(self.world.node), self.world.refusing),
            "{key}": self.keys,
            "{kind}": KINDS,
            "{option}": ("log_level",),
            "{asset}": ("app.css",),
        }
        found = re.search(r"\{topic\}/\{channel\}|\{\w+\}", path)
        if found is None:
            yield path
        else:
            for value in words[found[0]]:
                yield path.replace(found[0], value if "/" in found[0] else quote(value, safe=""))

    def _filled(self, text: str) -> str:
        for name, value in (
            ("{node}", name_of(self.world.node)),
            ("{refusing}", self.world.refusing),
            ("{reason}", self.reason),
            ("{keys}", "&pick=".join(self.keys)),
        ):
            text = text.replace(name, value)
        return text

    @cached_property
    def keys(self) -> list[str]:
        """The keys of all incidents, also of those that the user does not see."""
        found = json.loads(ask(self.admin, "admin", "GET", "/api/v2/incidents").text)
        return [it["key"] for it in found["incidents"]]

    @cached_property
    def reason(self) -> str:
        """An argument that selects the first reason of `orders` as this user has it listed."""
        listed = json.loads(ask(self.admin, self.user, "GET", "/api/v2/buried/orders/c").text)
        names = [it["name"] for node in listed["nodes"] for it in node["reasons"]]
        return f"&reason={quote(names[0])}"


def test_the_administrator_sees_all_of_it_and_every_route_answers(world: World) -> None:
    walk = Walk(world.admins["plain"], "admin", world)
    walk.go()
    unseen = PLANTED.by_name.keys() - walk.shown.keys()
    # nsqd tells the key only of what is deferred, and each walk has kicked some of the messages that were buried.
    assert {it for it in unseen if " key " not in it and " reason " not in it} == set()
    assert {"hidden key deferred", "payload key deferred"} <= walk.shown.keys()
    assert {"hidden reason", "payload reason"} <= {it.rpartition(" ")[0] for it in walk.shown}
    pages = {path for method, path in routes() if method == "GET"}
    assert pages - walk.answered - REFUSED.keys() == set()


@pytest.mark.parametrize(
    ("user", "admin", "may_not_see"),
    [
        ("one-topic", "plain", ("hidden",)),
        ("no-payload", "plain", ("payload body", "payload key", "payload header", "payload reason")),
        ("no-payload", "masked", ("payload body", "payload key", "payload header", "payload reason")),
    ],
)
def test_no_route_shows_what_a_user_may_not_see(
    world: World, user: str, admin: str, may_not_see: tuple[str, ...]
) -> None:
    walk = Walk(world.admins[admin], user, world)
    walk.go()
    secret = PLANTED.named(*may_not_see, *(it.replace("payload", "hidden") for it in may_not_see))
    assert len(secret) > 10
    assert {name: walk.shown[name] for name in secret if name in walk.shown} == {}


def test_who_does_not_see_a_reason_kicks_by_it(world: World) -> None:
    admin = world.admins["masked"]

    def asked(method: str, path: str, **body: Any) -> Any:
        answer = ask(admin, "no-payload", method, path, json.dumps({"topic": "orders", "channel": "c", **body}))
        assert answer.status == 200, answer
        return json.loads(answer.text)

    def listed() -> dict[str, str]:
        (node,) = asked("GET", "/api/v2/buried/orders/c")["nodes"]
        return {it["name"]: it["reason"] for it in node["reasons"]}

    asked("POST", "/api/v2/buried/stop")  # what the walks have begun
    name, shown = listed().popitem()
    assert shown == "no such card ***"
    plan = asked("POST", "/api/v2/buried/plan", verb="kick", reason=name, rate=0)
    assert (plan["count"], plan["reason"], plan["wanted"]["reason"]) == (1, shown, name)
    assert asked("POST", "/api/v2/buried", verb="kick", reason=name, rate=0)["result"] == "ok"
    assert name not in listed()
    (only, *_) = asked("GET", "/api/v2/activity?topic=orders&kind=action")["activity"]
    assert only["text"] == "kicked 1 of 1 buried messages of orders/c with the reason “no such card ***”"
    wrong = ask(admin, "no-payload", "GET", "/api/v2/buried/orders/c?reason=4929")
    assert (wrong.status, json.loads(wrong.text)["message"]) == (400, "INVALID_ARG_REASON")
