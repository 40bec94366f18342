"""Popular clients, unmodified, over TLS, snappy and deflate, and with AUTH: like test_clients.py, but shorter.

ansq is not among them: version 0.3 does not implement upgrades, and where AUTH is required it sends nothing but AUTH,
even after the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from tests.e2e.test_clients import run
from tests.support.auth_server import EVERYTHING, AuthServer, granting
from tests.support.certificates import Certificates, make_certificates
from tests.support.process import Nsqd, eventually

pytestmark = pytest.mark.slow

CLIENTS: Final = ("pynsq", "gnsq", "nsqjs", "go-nsq")
STREAMS: Final = {
    "tls": (True, ()),
    "snappy": (False, ("snappy",)),
    "deflate": (False, ("deflate",)),
    "tls+snappy": (True, ("snappy",)),
    "tls+deflate": (True, ("deflate",)),
}
SECRET: Final = "a secret"
DELAY_MS: Final = 200


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[dict[bool, Nsqd]]:
    """Run a broker that accepts everybody, and one that requires AUTH."""
    pair = f"tls-cert={certificates.certificate}", f"tls-key={certificates.key}"
    with ExitStack() as running:
        server = AuthServer(lambda asked: granting(*[EVERYTHING][: asked.secret == SECRET]))
        address = running.enter_context(server).address
        started = {}
        for guarded, options in ((False, ()), (True, (f"auth-http-address={address}",))):
            data = tmp_path_factory.mktemp("nsqd")
            broker = Nsqd(data, *pair, "https-address=127.0.0.1:0", *options)
            started[guarded] = running.enter_context(broker)
        yield started
        for broker in started.values():
            assert "Traceback" not in broker.log


def plan() -> dict[str, Any]:
    pub = [f"plain-{number}-{'x' * number}" for number in range(180)] + [f"requeue-{number}" for number in range(10)]
    mpub = [[f"many-{number}-{place}" for place in range(50)] for number in range(2)]
    dpub = [f"deferred-{number}" for number in range(10)]
    expected = pub + [body for bodies in mpub for body in bodies] + dpub
    assert len(expected) == 300
    return {"pub": pub, "mpub": mpub, "dpub": dpub, "expected": expected, "delay_ms": DELAY_MS}


def check(client: str, nsqd: Nsqd, topic: str, **how: object) -> None:
    what = {**plan(), **how}
    arrived = run(client, nsqd, what, topic=topic)
    bodies = sorted(body for body, _, _ in arrived)
    assert bodies == sorted([*what["expected"], *(body for body in what["expected"] if body.startswith("requeue"))])
    # A client may end before nsqd has read its last FINs.
    channel = eventually(lambda: (it := nsqd.channel(topic, "channel"))["in_flight_count"] == 0 and it)
    assert (channel["message_count"], channel["requeue_count"]) == (300, 10)
    assert [channel[it] for it in ("depth", "in_flight_count", "deferred_count", "timeout_count")] == [0, 0, 0, 0]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_all_that_it_publishes(
    brokers: dict[bool, Nsqd], certificates: Certificates, client: str, stream: str
) -> None:
    """Every other case is at the broker that requires AUTH, so each client and each stream meets both brokers."""
    guarded = (CLIENTS.index(client) + [*STREAMS].index(stream)) % 2 == 1
    tls, compression = STREAMS[stream]
    how: dict[str, object] = {"compression": compression}
    if tls:
        how["authority"] = str(certificates.authority)
    if guarded:
        how["secret"] = SECRET
    check(client, brokers[guarded], f"{client}-{stream.replace('+', '-')}", **how)
