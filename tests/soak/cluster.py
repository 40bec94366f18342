"""The processes of a soak (nsqlookupd, two nsqd, nsqadmin), and the memory, descriptors, threads and disk of each.

The steady nsqd lives from beginning to end, so that its growth can be judged; the victim is killed every few
minutes, requires AUTH, and offers TLS.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import trio

from bench.ports import HOST, take_port
from nsqclient import Config
from nsqcommon.http_client import HttpFailed, fetch
from nsqcommon.wire.http_exchange import Answer
from tests.soak.slopes import Sample, Series
from tests.support.auth_server import EVERYTHING, AuthServer, granting
from tests.support.certificates import make_certificates
from tests.support.http_server import Reply, Request
from tests.support.process import Daemon, Nsqadmin, Nsqd, Nsqlookupd

SECRET: Final = "soak"
RETENTION: Final = 300  # seconds for which the archive keeps finished messages
_OPTIONS: Final = (
    "broadcast-address=127.0.0.1",
    "max-bytes-per-file=1048576",
    "mem-queue-size=1000",  # full within minutes, so that the slope is not that of the cache
    f"topic-retention=archive={RETENTION}s",
)
# A Ctrl-C in a terminal reaches a whole process group, and the daemons have to live until the ledger is closed.
_OWN_SESSION: Final = ("setsid",)
_ASK_TIMEOUT: Final = 20.0

D = TypeVar("D", bound=Daemon)


@dataclass
class Cluster:
    lookupd: Nsqlookupd
    steady: Nsqd
    victim: Nsqd
    admin: Nsqadmin
    tls: ssl.SSLContext
    series: dict[str, Series]
    # Held while the victim is down, and by operations for which it has to be up.
    undisturbed: trio.Lock = field(default_factory=trio.Lock)

    @property
    def daemons(self) -> dict[str, Daemon]:
        return {"nsqlookupd": self.lookupd, "nsqd": self.steady, "nsqd (killed)": self.victim, "nsqadmin": self.admin}

    @property
    def lookupd_http(self) -> str:
        return _text(self.lookupd.http_address)

    @property
    def nodes(self) -> list[str]:
        """Return the TCP addresses, for publishing."""
        return [_text(self.steady.tcp), _text(self.victim.tcp)]

    def config(self, **settings: Any) -> Config:
        """Return the settings for a client of both nodes."""
        return Config(
            tls="prefer",
            ssl_context=self.tls,
            auth_secret=SECRET,
            lookupd_poll_interval=2.0,
            reconnect_delay="fixed",  # a growing delay reaches a minute if a node is killed often
            dial_timeout=30.0,  # the machine may be busy
            write_timeout=30.0,
            **settings,
        )

    async def sample(self, now: float) -> None:
        for name, daemon in self.daemons.items():
            if (sample := await trio.to_thread.run_sync(_sample, daemon, now)) is not None:
                self.series[name].samples.append(sample)


async def ask(daemon: Daemon, path: str, *, method: str = "GET", body: bytes = b"") -> Answer:
    """Send a request, and return the body. Raise HttpFailed, also for any status but 200."""
    url = f"http://{_text(daemon.http_address)}{path}"
    answer = await fetch(method, url, tls=_NO_TLS, body=body, timeout=_ASK_TIMEOUT)
    if answer.status != 200:
        raise HttpFailed(f"{daemon.program}: {method} {path}: {answer.status} {answer.body[:200]!r}")
    return answer


_NO_TLS: Final = ssl.create_default_context()


@asynccontextmanager
async def a_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Start the cluster, and kill it at the end of the block if `stop` has not ended it."""
    certificates = make_certificates(folder)
    trusting = ssl.create_default_context(cafile=str(certificates.authority))
    with AuthServer(_grant) as auth, ExitStack() as ports, _killed_at_the_end() as daemons:
        lookupd = await _start(daemons, Nsqlookupd())
        options = (*_OPTIONS, f"lookupd-tcp-address={_text(lookupd.tcp)}")
        steady = await _start(daemons, Nsqd(folder / "steady", *options))
        guarded = (
            f"auth-http-address={auth.address}",
            f"tls-cert={certificates.certificate}",
            f"tls-key={certificates.key}",
            "https-address=",
            f"tcp-address={HOST}:{take_port(ports)}",  # the same when it is started again, so that clients find it
            f"http-address={HOST}:{take_port(ports)}",
        )
        victim = await _start(daemons, Nsqd(folder / "victim", *options, *guarded))
        admin = await _start(daemons, Nsqadmin(f"lookupd-http-address={_text(lookupd.http_address)}"))
        series = {name: Series(name, is_judged=name != "nsqd (killed)") for name in _NAMES}
        yield Cluster(lookupd, steady, victim, admin, trusting, series)


_NAMES: Final = ("nsqlookupd", "nsqd", "nsqd (killed)", "nsqadmin")


def _grant(asked: Request) -> Reply:
    """Grant everything to clients with the secret, for a minute; then nsqd has to ask again."""
    return granting(EVERYTHING, ttl=60) if asked.secret == SECRET else Reply(403)


@contextmanager
def _killed_at_the_end() -> Iterator[list[Daemon]]:
    daemons: list[Daemon] = []
    try:
        yield daemons
    finally:
        for daemon in daemons:
            daemon.kill()


async def _start(daemons: list[Daemon], daemon: D) -> D:
    daemon.under = _OWN_SESSION
    daemons.append(daemon)
    await trio.to_thread.run_sync(daemon.start)
    return daemon


def _sample(daemon: Daemon, now: float) -> Sample | None:
    """Return a sample of the process, or None while it is not running."""
    try:
        folder = Path(f"/proc/{daemon.pid}")
        status = folder.joinpath("status").read_text()
        descriptors = len(os.listdir(folder / "fd"))
        disk = _size(daemon.data_path) if isinstance(daemon, Nsqd) else 0
    except (AssertionError, OSError):
        return None
    found = {name: int(value) for name, value in re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE)}
    if "VmRSS" not in found:  # it has just ended
        return None
    return Sample(now, found["VmRSS"] * 1024, descriptors, found["Threads"], disk)


def _size(folder: Path) -> int:
    """Return the size of all files below the folder; files that disappear meanwhile count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
