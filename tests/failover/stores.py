"""The stores of the suites: a shared folder, or a server with a proxy in front of each machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

from tests.failover.proxy import Fault, StoreProxy, Weather
from tests.support.engines import BUCKET, KEY, SECRET, Azurite, Ceph
from tests.support.lying_s3 import HonestS3
from tests.support.s3 import S3Server

KINDS: Final = ("file", "moto", "ceph", "azurite")
SERVERS: Final = KINDS[1:]
CALM: Final = 0.0005  # seconds that a store in the same network takes longer than one on this machine
# How many of all requests have these faults. One that is held keeps its connection for half a minute.
STORM: Final[Mapping[Fault, float]] = {
    fault: 0.003 if fault is Fault.HELD else 0.01 for fault in Fault if fault is not Fault.SLOWED
}
STORMS: Final = 0.7  # of all lives


class Store(Protocol):
    """Where one node's objects are, as its machines reach them."""

    @property
    def is_stormy(self) -> bool:
        """Whether requests fail by themselves, so that a publish may wait for longer than --remote-timeout."""

    def options(self, machine: int) -> Sequence[str]:
        """Return the options with which nsqd on this machine uses the store."""

    def go_away(self, machine: int | None = None) -> None:
        """Give this machine no answers, or none of them."""

    def come_back(self) -> None: ...

    def begin_storm(self) -> None:
        """Let requests of all machines fail from now on, if this is such a life."""

    def calm(self) -> None:
        """Let no request fail any more."""

    def settle(self) -> None:
        """Carry out every request that is still held, as late as can be."""


class SharedFolder:
    is_stormy = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._elsewhere = folder.with_name(f"{folder.name}-unmounted")
        folder.mkdir()

    def options(self, machine: int) -> Sequence[str]:
        return (f"remote=file://{self.folder}",)

    def go_away(self, machine: int | None = None) -> None:
        assert machine is None, "a folder has no wire to one machine that could be cut"
        self.folder.rename(self._elsewhere)

    def come_back(self) -> None:
        if self._elsewhere.exists():
            self._elsewhere.rename(self.folder)

    def begin_storm(self) -> None: ...

    def calm(self) -> None: ...

    def settle(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Server:
    """What machines need to know of a server, whose address they get from their proxy."""

    scheme: str  # of nsqd's URL
    address: str
    path: str  # of the endpoint
    credentials: Mapping[str, str]


class Bucket:
    """A prefix of a bucket. Each machine reaches it through a proxy of its own.

    It begins calm, because nsqd examines a store before its first use, and refuses one that fails then.
    """

    def __init__(
        self, server: Server, chance: random.Random, running: ExitStack, faults: Mapping[Fault, float]
    ) -> None:
        self.proxies: dict[int, StoreProxy] = {}
        self._server = server
        self._url = f"{server.scheme}://{BUCKET}/nsq-{uuid4().hex}"
        self._chance = chance
        self._running = running
        self._faults = faults
        self._has_storm = False

    @property
    def is_stormy(self) -> bool:
        return self._has_storm and bool(self._faults)

    def options(self, machine: int) -> Sequence[str]:
        weather = Weather(CALM, self._faults if self._has_storm else {})
        proxy = StoreProxy(self._server.address, random.Random(self._chance.random()), weather)
        self.proxies[machine] = self._running.enter_context(proxy)
        return (
            f"remote={self._url}",
            f"remote-option=endpoint={proxy.url}{self._server.path}",
            *(f"remote-option={name}={value}" for name, value in self._server.credentials.items()),
        )

    def go_away(self, machine: int | None = None) -> None:
        way = self._chance.choice(("is_cut", "is_silent", "loses_answers", "slows_down"))
        for number, proxy in self.proxies.items():
            if machine in (None, number):
                setattr(proxy.weather, way, True)

    def come_back(self) -> None:
        for proxy in self.proxies.values():
            weather = proxy.weather
            weather.is_cut = weather.is_silent = weather.loses_answers = weather.slows_down = False

    def begin_storm(self) -> None:
        self._has_storm = True
        for proxy in self.proxies.values():
            proxy.weather.faults = self._faults

    def calm(self) -> None:
        self._has_storm = False
        for proxy in self.proxies.values():
            proxy.weather.faults = {}

    def settle(self) -> None:
        for proxy in self.proxies.values():
            proxy.deliver_held()


NewStore = Callable[[Path, random.Random, ExitStack], Store]


@contextmanager
def stores(kind: str, folder: Path) -> Iterator[NewStore]:
    """Run a server of this kind, and yield what makes an empty store for each life, in a folder of that life."""
    if kind == "file":
        yield lambda life, chance, running: SharedFolder(life / "store")
        return
    with _server(kind, folder) as server:

        def new_store(life: Path, chance: random.Random, running: ExitStack) -> Store:
            return Bucket(server, chance, running, STORM if chance.random() < STORMS else {})

        yield new_store


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[Server]:
    """Run a server of this kind, or skip the test if it isn't there."""
    keys = {"access_key_id": KEY, "secret_access_key": SECRET}
    match kind:
        case "azurite":
            with Azurite() as azurite:
                parts = urlsplit(azurite.endpoint)
                account = {name: value for name, value in azurite.options.items() if name != "endpoint"}
                yield Server("az", parts.netloc, parts.path, account)
        case "ceph":
            with Ceph() as ceph:
                yield Server("s3", urlsplit(ceph.endpoint).netloc, "", keys)
        case "fake":  # of the tests only
            with HonestS3() as fake:
                yield Server("s3", urlsplit(fake.url).netloc, "", keys)
        case _:
            with S3Server(folder) as moto:
                yield Server("s3", moto.address, "", keys)
