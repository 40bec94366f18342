from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from nsqcommon.http_api import HttpApi
from nsqcommon.wire.limits import SizeLimits
from nsqd.broker.broker import Broker
from nsqd.broker.leases import LeaseLimits
from nsqd.http import Guard, HistoryReads, NodeInfo, Publishing, make_app
from nsqd.http.access import GuardedRoute
from nsqd.options import Options
from nsqd.policy.policy_file import PolicyFile
from tests.nsqd.fake_broker import FakeStore, FakeTurn, bodies, make_broker
from tests.nsqd.http.fake_history import no_history
from tests.support.asgi import Answer, ask, run_directly
from tests.support.leasing import leasing_of

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
LIMITS = SizeLimits(max_message=100, max_body=500)


def code(name: str) -> bytes:
    return b'{"message":"%s"}' % name.encode()


@dataclass
class FakeSettings:
    options: Options

    def replace(self, options: Options) -> None:
        self.options = options


class Nsqd:
    """The HTTP side of an nsqd, in memory."""

    def __init__(
        self,
        reading: HistoryReads | None = None,
        limits: SizeLimits = LIMITS,
        policy: PolicyFile | None = None,
        within: LeaseLimits | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.store = FakeStore()
        self.broker: Broker = make_broker(self.store)
        self.turn = FakeTurn(self.broker)
        self.settings = FakeSettings(replace(Options(), broadcast_address="node1"))
        self.publishing = Publishing(self.broker, limits, max_defer_ms=3_600_000)
        self.leasing = leasing_of(self.broker, within)
        self.app: HttpApi[GuardedRoute] = make_app(
            self.broker,
            self.turn,
            self.settings,
            self.publishing,
            NodeInfo(hostname="node1", tcp_port=4150, http_port=4151),
            start_drain=self._start_drain,
            take_drain_back=self._take_drain_back,
            is_draining=lambda: self.broker.refusal is not None,
            run_trio=run_directly,
            reading=reading or no_history(),
            leasing=self.leasing,
            policy=policy,
            guard=guard,
        )

    def _take_drain_back(self) -> bool:
        self.broker.refusal = None
        return True

    def _start_drain(self, *, stay: float | None, retire: bool) -> bool:
        self.broker.refusal = "draining"
        return not retire

    def get(self, target: str) -> Answer:
        return ask(self.app, "GET", target)

    def post(self, target: str, body: bytes | list[bytes] = b"") -> Answer:
        return ask(self.app, "POST", target, body)

    def put(self, target: str, body: bytes | list[bytes] = b"") -> Answer:
        return ask(self.app, "PUT", target, body)

    def bodies(self, topic: str) -> list[bytes]:
        return bodies(self.store, topic)


@pytest.fixture
def nsqd() -> Nsqd:
    return Nsqd()
