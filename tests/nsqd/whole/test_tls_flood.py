"""Floods of connections that are not TLS clients: honest handshakes succeed; descriptors and memory stay bounded.

`TLS_FLOOD_SECONDS=60 scripts/test tests/nsqd/whole/test_tls_flood.py -rP` is the long form; it prints its figures.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from nsqcommon.handshake import MOST_UNDER_WAY
from nsqcommon.wire.commands import identify
from tests.support.certificates import Certificates, make_certificates
from tests.support.process import Daemon, Nsqd, Nsqlookupd, eventually
from tests.support.upgraded import UpgradedClient, trusting

pytestmark = pytest.mark.slow

FLOOD: Final = Path(__file__).parents[2] / "e2e" / "peers" / "tls_flood.py"
SECONDS: Final = float(os.environ.get("TLS_FLOOD_SECONDS", "2"))
IS_LONG: Final = "TLS_FLOOD_SECONDS" in os.environ
# Those who stay do so until the seconds are over: more than may be under way. Of those who go at once, each one that
# is kept is seen when the flood has ended.
STAYING: Final = sys.maxsize if IS_LONG else 3 * MOST_UNDER_WAY // 2
GOING: Final = sys.maxsize if IS_LONG else 400
HONEST: Final = 15  # at least
LIMIT: Final = 30.0  # seconds for one handshake, on a machine shared with the flood
PROBE_PAUSE: Final = 0.05
HONEST_PAUSE: Final = 0.05
OTHERS: Final = 300  # descriptors of honest clients, and of connections that are being closed
MEGABYTE: Final = 1 << 20
UPGRADE: Final = b"  V2" + identify(b'{"feature_negotiation":true,"tls_v1":true}')
KINDS: Final = {"garbage": GOING, "hello": GOING, "stall": STAYING, "silent": STAYING}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_nsqd(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Nsqd]:
    """Run one nsqd for all floods, as each has to leave nothing behind."""
    options = (f"tls-cert={certificates.certificate}", f"tls-key={certificates.key}", "https-address=127.0.0.1:0")
    with Nsqd(tmp_path_factory.mktemp("nsqd"), *options) as nsqd:
        yield nsqd


@pytest.fixture(scope="module")
def tls_nsqlookupd(certificates: Certificates) -> Iterator[Nsqlookupd]:
    with Nsqlookupd(f"tls-cert={certificates.certificate}", f"tls-key={certificates.key}") as lookupd:
        lookupd.https_address = lookupd.http_address
        yield lookupd


@contextmanager
def flood(address: tuple[str, int], kind: str, prefix: bytes) -> Iterator[subprocess.Popen[str]]:
    numbers = (str(address[1]), str(SECONDS), str(KINDS[kind]))
    command = [sys.executable, "-I", "-S", str(FLOOD), address[0], *numbers, kind, prefix.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        made, _ = process.communicate(timeout=SECONDS + LIMIT)
    print(f"{kind}: {made.split()[0]} connections", end=", ")


class Watched:
    """The most descriptors and memory that a process had."""

    def __init__(self, daemon: Daemon) -> None:
        self.descriptors = 0
        self.resident = 0
        self._daemon = daemon
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._ends.wait(PROBE_PAUSE):
            self.descriptors = max(self.descriptors, self._daemon.descriptors)
            self.resident = max(self.resident, self._daemon.resident_bytes)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def honest_ones(shake_hands: Callable[[], None], flooding: subprocess.Popen[str]) -> list[float]:
    """Return the seconds that each honest handshake took, as long as the flood lasts. A failed one raises."""
    times: list[float] = []
    while len(times) < HONEST or flooding.poll() is None:
        began = time.monotonic()
        shake_hands()
        times.append(time.monotonic() - began)
        time.sleep(HONEST_PAUSE)
    return sorted(times)


def withstands(
    daemon: Daemon, address: tuple[str, int], kind: str, shake_hands: Callable[[], None], prefix: bytes
) -> None:
    shake_hands()
    before = daemon.descriptors
    with Watched(daemon) as watched, flood(address, kind, prefix) as flooding:
        times = honest_ones(shake_hands, flooding)
    print(
        f"{len(times)} of {len(times)} honest, median {times[len(times) // 2]:.3f} s, longest {times[-1]:.3f} s, "
        f"{watched.descriptors} descriptors, {watched.resident / MEGABYTE:.0f} MiB"
    )
    assert watched.descriptors < before + MOST_UNDER_WAY + OTHERS
    assert watched.resident < 250 * MEGABYTE
    assert eventually(lambda: daemon.descriptors <= before, timeout=LIMIT)
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize("kind", KINDS)
def test_https_is_there_for_the_honest(tls_nsqd: Nsqd, certificates: Certificates, kind: str) -> None:
    context = trusting(certificates)
    withstands(tls_nsqd, tls_nsqd.https_address, kind, lambda: ask_over_https(tls_nsqd, context), b"")


@pytest.mark.parametrize("kind", KINDS)
def test_tls_after_identify_is_there_for_the_honest(tls_nsqd: Nsqd, certificates: Certificates, kind: str) -> None:
    context = trusting(certificates)

    def shake_hands() -> None:
        with UpgradedClient(tls_nsqd.tcp) as client:
            client.upgrade(tls=context)

    withstands(tls_nsqd, tls_nsqd.tcp, kind, shake_hands, UPGRADE)


@pytest.mark.parametrize("kind", KINDS)
def test_tls_of_nsqlookupd_is_there_for_the_honest(
    tls_nsqlookupd: Nsqlookupd, certificates: Certificates, kind: str
) -> None:
    context = trusting(certificates)

    def shake_hands() -> None:
        connection = socket.create_connection(tls_nsqlookupd.tcp, timeout=LIMIT)
        with context.wrap_socket(connection, server_hostname="localhost") as secure:
            secure.sendall(b"  V1PING\n")
            assert secure.recv(6) == b"\x00\x00\x00\x02OK"

    withstands(tls_nsqlookupd, tls_nsqlookupd.tcp, kind, shake_hands, b"")


@pytest.mark.parametrize("kind", KINDS)
def test_https_of_nsqlookupd_is_there_for_the_honest(
    tls_nsqlookupd: Nsqlookupd, certificates: Certificates, kind: str
) -> None:
    context = trusting(certificates)

    def shake_hands() -> None:
        assert tls_nsqlookupd.http("GET", "/ping", tls=context, timeout=LIMIT).status == 200

    withstands(tls_nsqlookupd, tls_nsqlookupd.http_address, kind, shake_hands, b"")


def ask_over_https(nsqd: Nsqd, context: ssl.SSLContext) -> None:
    assert nsqd.http("GET", "/ping", tls=context, timeout=LIMIT).status == 200
