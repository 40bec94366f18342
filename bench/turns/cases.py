"""The walk: what is asked of each route and each command, so that it makes as much work as it can.

A route without a case, or a case without a route, fails the benchmark and a test. `{topic}` is a topic in the state that
the case is about; `{ids}` and `{sequences}` are parts of queries that name a hundred messages of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.turns.filling import CHANNEL, KEY, LATER, OF_CHANNELS
from nsqcommon.wire import commands, extensions, headers
from nsqd.client.states import EXTENDED, LEGAL

WIDE: Final = "wide"  # a topic with many channels
BODY: Final = 5 << 20  # the largest body, and
MESSAGE: Final = 1 << 20  # the largest message, unless options say otherwise
LONGEST_VALUE: Final = 64 << 10  # of an option, and of IDENTIFY
MPUB: Final = (1_000_000).to_bytes(4, "big") + b"\0\0\0\1x" * 1_000_000
_CHANNEL: Final = f"topic={{topic}}&channel={CHANNEL}"
_RANGE: Final = f"{_CHANNEL}&from=0&to=10000"
_FEW_HEADERS: Final = headers.encode_headers({f"h{number}": "v" for number in range(64)})


@dataclass(frozen=True)
class Case:
    route: str  # as in the table of routes, or TCP and a command
    query: str = ""
    states: Sequence[str] = ("",)
    body: bytes = b""
    path: str = ""  # if that of the route has words
    spoils: bool = False  # the topic is in another state afterwards
    accept: str = "*/*"

    def name_in(self, state: str) -> str:
        shown = self.query.replace(_CHANNEL, "").replace("topic={topic}", "").lstrip("&")
        return " ".join(filter(None, (self.route, shown[:60], f"({state})" if state else "")))


def _batch_with_headers() -> bytes:
    one = len(_FEW_HEADERS + b"x").to_bytes(4, "big") + _FEW_HEADERS + b"x"
    count = (BODY - 4) // len(one)
    return count.to_bytes(4, "big") + one * count


def _state() -> bytes:
    """Return a document of /channel/state that is as long as it may be; the log's name is put in."""
    finished = [[2 * number, 2 * number + 1] for number in range(3_000)]
    requeued = [[2 * number + 1, 1] for number in range(3_000)]
    deferred = [[2 * number + 1, 1, 253_402_300_799_000] for number in range(3_000, 6_000)]
    document = {"next": 0, "end": 12_000, "finished": finished, "requeued": requeued, "deferred": deferred}
    return json.dumps({"log": "LOG", "paused": False, **document}).encode()


HMPUB: Final = _batch_with_headers()
_READER: Final = json.dumps({"name": "n" * 128, "log": "LOG", "sequence": 0, "into": "i" * 1024, "host": "h" * 255})
_LOOKUPDS: Final = json.dumps([f"127.0.0.1:{port}" for port in range(1, 3_000)])
_IDS: Final = "{ids}"  # in a body: of messages, one a line

# In this order: what leaves a topic as it was comes first.
CASES: Final = (
    Case("GET /ping"),
    Case("GET /healthz"),
    Case("GET /readyz"),
    Case("GET /info"),
    Case("GET /stats", "format=json&ages=true"),
    Case("GET /stats", "format=json&include_clients=false"),
    Case("GET /stats", "format=text"),
    Case("GET /stats", f"format=json&channel={CHANNEL}"),
    Case("GET /stats", "format=json&topic={topic}&ages=true", OF_CHANNELS),
    Case("GET /stats", f"format=json&topic={WIDE}"),
    Case("GET /metrics"),
    Case("GET /remote"),
    Case("GET /changes", "limit=1000"),
    Case("GET /config/policy", _CHANNEL, ("waiting",)),
    Case("GET /config/{option}", path="/config/log_level"),
    Case("PUT /config/{option}", body=_LOOKUPDS.encode(), path="/config/nsqlookupd_tcp_addresses"),
    Case("PUT /config/{option}", body=b"[]", path="/config/nsqlookupd_tcp_addresses"),
    Case("GET /debug/pprof/"),
    Case("GET /debug/pprof"),
    Case("GET /debug/pprof/cmdline"),
    Case("GET /debug/pprof/symbol"),
    Case("POST /debug/pprof/symbol", body=b"x" * BODY),
    Case("GET /debug/pprof/goroutine"),
    Case("GET /debug/pprof/block"),
    Case("GET /debug/pprof/threadcreate"),
    Case("GET /debug/pprof/heap"),
    Case("GET /debug/pprof/profile", "seconds=1"),
    Case("PUT /debug/setblockrate", body=b"rate=" + b"1" * LONGEST_VALUE),
    Case("POST /debug/freememory"),
    Case("POST /pub", "topic={topic}_pub", ("waiting",), b"x" * MESSAGE),
    Case("POST /pub", f"topic={WIDE}", body=b"x" * MESSAGE),
    Case("POST /mpub", "topic={topic}_mpub", ("waiting",), b"x\n" * (BODY // 2)),
    Case("POST /mpub", f"topic={WIDE}&binary=true", body=MPUB),
    Case("POST /mpub", f"topic={{topic}}&binary=true&defer={LATER}", ("waiting",), MPUB, spoils=True),
    Case("POST /mpub", "topic={topic}&binary=true&key=" + KEY, OF_CHANNELS, MPUB),
    Case("POST /hmpub", "topic={topic}_hmpub", ("waiting",), HMPUB),
    Case("GET /topic/log", "topic={topic}&points=1000&readers=true", OF_CHANNELS),
    Case("GET /topic/read", "topic={topic}&from=earliest", OF_CHANNELS),
    Case("GET /topic/read", "topic={topic}&from=earliest", ("waiting",), accept="application/msgpack"),
    Case("POST /topic/reader", "topic={topic}", ("waiting",), _READER.encode()),
    Case("POST /topic/reader/delete", f"topic={{topic}}&name={'n' * 128}&into={'i' * 1024}", ("waiting",)),
    Case("POST /topic/create", f"topic={'a.' * 32}"),
    Case("POST /topic/pause", "topic={topic}", OF_CHANNELS),
    Case("POST /topic/unpause", "topic={topic}", OF_CHANNELS),
    Case("POST /channel/pause", _CHANNEL, OF_CHANNELS),
    Case("POST /channel/unpause", _CHANNEL, OF_CHANNELS),
    Case("GET /channel/position", f"{_CHANNEL}&limit=1000", OF_CHANNELS),
    Case("GET /channel/state", _CHANNEL, OF_CHANNELS),
    Case("GET /channel/deferred", f"{_CHANNEL}&limit=10000", OF_CHANNELS),
    Case("GET /channel/deferred", f"{_CHANNEL}&summary=true", OF_CHANNELS),
    Case("GET /channel/inflight", f"{_CHANNEL}&limit=10000", OF_CHANNELS),
    Case("GET /channel/inflight", f"{_CHANNEL}&client=absent", OF_CHANNELS),
    Case("GET /channel/inflight", f"{_CHANNEL}&summary=true", OF_CHANNELS),
    Case("GET /channel/groups", f"{_CHANNEL}&limit=1000", ("grouped",)),
    Case("GET /channel/groups", f"{_CHANNEL}&name=absent", ("grouped",)),
    Case("GET /channel/buried", f"{_CHANNEL}&limit=10000&bodies=true", OF_CHANNELS),
    Case("GET /channel/buried", f"{_CHANNEL}&reason=absent", OF_CHANNELS),
    Case("GET /channel/buried", f"{_CHANNEL}&summary=true", OF_CHANNELS),
    Case("GET /channel/jobs", _CHANNEL, OF_CHANNELS),
    Case("POST /channel/jobs/stop", _CHANNEL, OF_CHANNELS),
    Case("GET /message", "id=0123456789abcdef", OF_CHANNELS),
    Case("POST /message/cancel", f"{_CHANNEL}&key=absent", OF_CHANNELS),
    Case("POST /message/cancel", "topic={topic}&key=k-7", ("deferred",)),
    Case("POST /message/cancel", "topic={topic}&id=0123456789abcdef", OF_CHANNELS),
    Case("POST /message/due", f"{_CHANNEL}&key=absent&defer=0", OF_CHANNELS),
    Case("POST /message/due", f"topic={{topic}}&key=k-8&defer={LATER}", ("deferred",)),
    Case("POST /message/cancel", _RANGE, OF_CHANNELS),
    Case("POST /message/due", f"{_RANGE}&defer={LATER}", OF_CHANNELS),
    Case("POST /channel/redeliver", _RANGE, OF_CHANNELS),
    Case("POST /channel/restore", _CHANNEL, OF_CHANNELS, _state()),
    Case("POST /channel/edit", f"{_CHANNEL}&sequence=7", OF_CHANNELS, b"edited"),
    Case("POST /channel/kick", f"{_CHANNEL}&{{ids}}", OF_CHANNELS),
    Case("POST /channel/discard", f"{_CHANNEL}&{{ids}}", OF_CHANNELS),
    Case("POST /sub", f"{_CHANNEL}&max=1000", ("waiting", "retries")),
    Case("GET /sub", f"{_CHANNEL}&max=1000", ("waiting", "retries"), accept="text/event-stream"),
    Case("POST /touch", _CHANNEL, ("in_flight",), _IDS.encode()),
    Case("POST /req", f"{_CHANNEL}&defer={LATER}", ("in_flight",), _IDS.encode()),
    Case("POST /bury", f"{_CHANNEL}&reason={'r' * 256}", ("in_flight",), _IDS.encode()),
    Case("POST /fin", _CHANNEL, ("in_flight",), _IDS.encode()),
    # These leave nothing as it was.
    Case("POST /message/due", f"topic={{topic}}&key={KEY}&defer={LATER}", ("waiting", "delayed", "retries", "in_flight"), spoils=True),
    Case("POST /message/due", f"topic={{topic}}&key={KEY}&defer=0", ("delayed",), spoils=True),
    Case("POST /message/cancel", f"topic={{topic}}&key={KEY}", ("waiting", "delayed", "retries", "in_flight"), spoils=True),
    Case("POST /channel/due", f"{_CHANNEL}&group=g7&defer={LATER}", ("grouped",)),
    Case("POST /channel/due", f"{_CHANNEL}&group=g7", ("grouped",)),
    Case("POST /channel/cancel", f"{_CHANNEL}&group=g8", ("grouped",)),
    Case("POST /channel/bury", f"{_CHANNEL}&group=g9", ("grouped",), spoils=True),
    Case("POST /channel/seek", f"{_CHANNEL}&from=latest", OF_CHANNELS, spoils=True),
    Case("POST /channel/kick", _CHANNEL, ("buried",)),
    Case("POST /channel/kick/undo", f"{_CHANNEL}&kick={{kick}}", ("buried",)),
    Case("POST /channel/discard", _CHANNEL, ("buried",), spoils=True),
    Case("POST /channel/empty", _CHANNEL, OF_CHANNELS, spoils=True),
    Case("POST /topic/unpause", "topic={topic}", ("paused",), spoils=True),
    Case("POST /channel/create", "topic={topic}&channel=other", ("parked", "unclaimed"), spoils=True),
    Case("POST /channel/create", "topic={topic}&channel=other&from=earliest", ("waiting",)),
    Case("POST /channel/delete", _CHANNEL, OF_CHANNELS, spoils=True),
    Case("POST /topic/empty", "topic={topic}", ("parked",), spoils=True),
    Case("POST /topic/delete", "topic={topic}", (*OF_CHANNELS, "parked"), spoils=True),
    Case("POST /topic/delete", f"topic={WIDE}"),
    Case("POST /drain", "stay=1h"),
    Case("POST /undrain"),
)  # fmt: skip

_IDENTITY: Final = json.dumps({f"k{number}": number for number in range(4_000)})
_EACH: Final[Mapping[str, Callable[[bytes], bytes]]] = {  # what a consumer says to each message that it holds
    "FIN": commands.fin,
    "TOUCH": commands.touch,
    "REQ": lambda message_id: commands.req(message_id, 0),
    "BURY": lambda message_id: extensions.bury(message_id, "r" * 256),
}


@dataclass(frozen=True)
class Said:
    """A case of the TCP protocol: what is said on a new connection, after IDENTIFY unless that is the case."""

    command: str
    said: Callable[[str], bytes] = lambda topic: b""  # from the topic's name
    states: Sequence[str] = ("waiting",)
    each: bool = False  # 2,500 messages are received, and each is answered

    @property
    def route(self) -> str:
        return f"TCP {self.command}"

    def name_in(self, state: str) -> str:
        return f"{self.route} ({state})"

    def answer(self, message_id: bytes) -> bytes:
        return _EACH[self.command](message_id)


def _consuming(topic: str) -> bytes:
    return commands.sub(topic, CHANNEL) + commands.rdy(2_500)


SAID: Final = (
    Said("IDENTIFY", lambda topic: commands.identify(_IDENTITY.encode())),
    Said("AUTH", lambda topic: commands.auth(b"s" * LONGEST_VALUE)),
    Said("NOP", lambda topic: commands.nop() * 500_000),
    Said("PUB", lambda topic: commands.pub(f"{topic}_tcp", b"x" * MESSAGE)),
    Said("PUB", lambda topic: b"".join(commands.pub(f"t.{number}", b"x") for number in range(5_000))),
    Said("PUB", lambda topic: b"".join(commands.pub(f"new.{number}.t", b"x") for number in range(1_000))),
    Said("DPUB", lambda topic: commands.dpub(f"{topic}_tcp", LATER, b"x" * MESSAGE)),
    Said("MPUB", lambda topic: b"MPUB %b_tcp\n" % topic.encode() + len(MPUB).to_bytes(4, "big") + MPUB),
    Said("HPUB", lambda topic: commands.hpub(f"{topic}_tcp", _FEW_HEADERS, b"x" * MESSAGE)),
    Said("HDPUB", lambda topic: commands.hdpub(f"{topic}_tcp", LATER, _FEW_HEADERS, b"x" * MESSAGE)),
    Said("HMPUB", lambda topic: b"HMPUB %b_tcp\n" % topic.encode() + len(HMPUB).to_bytes(4, "big") + HMPUB),
    Said("SUB", lambda topic: commands.sub(topic, CHANNEL), OF_CHANNELS),
    Said("RDY", _consuming, OF_CHANNELS),
    Said("CLS", lambda topic: _consuming(topic) + commands.cls(), OF_CHANNELS),
    *(Said(command, _consuming, ("waiting", "retries"), each=True) for command in _EACH),
)
COMMANDS: Final = frozenset({word.decode() for word in {*LEGAL, *EXTENDED}} | {"HPUB", "HDPUB", "HMPUB"})


def missing(routes: Sequence[str]) -> set[str]:
    """Return the routes and commands of which the walk knows nothing, and those that it asks in vain."""
    return (
        {*routes, *(f"TCP {command}" for command in COMMANDS)} ^ {it.route for it in CASES} ^ {it.route for it in SAID}
    )
