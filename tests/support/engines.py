"""Real object stores for tests: Ceph's gateway with a monitor and a disk in memory, and Azure's emulator Azurite.

`scripts/bring-object-stores` brings them into build/object-stores. They are started by long forms only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.request import Request, urlopen

import pytest

from bench.ports import HOST, take_port
from tests.support.needs import AZURITE, CEPH, missing
from tests.support.process import eventually

BUCKET: Final = "lake"
KEY: Final = "tests"
SECRET: Final = "the-secret-of-the-tests"

_LIBRARIES: Final = [*(CEPH / it for it in ("usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"))]
_LIMIT: Final = 120.0  # seconds to start, on a busy machine
_FSID: Final = "11111111-2222-3333-4444-555555555555"
# What Azurite knows: its documents have both.
_AZURE_ACCOUNT: Final = "devstoreaccount1"
_AZURE_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class _Engine:
    """Processes in a folder of their own, which all end with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._running):
            process.kill()
            process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        raise NotImplementedError

    @property
    def environ(self) -> Mapping[str, str]:
        return os.environ

    def run(self, *command: str) -> None:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, timeout=_LIMIT, check=False
        )
        assert done.returncode == 0, (command, done.stdout[-1000:], done.stderr[-1000:])

    def spawn(self, *command: str) -> None:
        with (self.folder / f"{len(self._running)}.out").open("wb") as log:
            self._running.append(
                subprocess.Popen(
                    command, cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )

    def wait_for(self, port: int) -> None:
        eventually(lambda: self._listens(port), timeout=_LIMIT)

    def _listens(self, port: int) -> bool:
        for number, process in enumerate(self._running):
            assert process.poll() is None, (self.folder / f"{number}.out").read_text()[-2000:]
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0


def _skip_without(engine: str) -> None:
    """Skip the test, also in CI: only long forms start these."""
    if lacks := missing(engine):
        pytest.skip(f"{lacks}: scripts/bring-object-stores")


class Ceph(_Engine):
    """A monitor, one disk in memory, and the gateway that speaks S3. Nothing authenticates but the gateway's users."""

    def __init__(self) -> None:
        _skip_without("Ceph")
        super().__init__()
        self._monitor, self._gateway = take_port(), take_port()
        self.endpoint = f"http://{HOST}:{self._gateway}"

    @property
    def environ(self) -> Mapping[str, str]:
        libraries = ":".join(map(str, [*_LIBRARIES, CEPH / "lib" / "x86_64-linux-gnu"]))
        return {**os.environ, "LD_LIBRARY_PATH": libraries, "CEPH_CONF": str(self.folder / "ceph.conf")}

    def _start(self) -> None:
        (self.folder / "ceph.conf").write_text(self._configuration())
        for name in ("mon", "osd"):
            (self.folder / name).mkdir()
        self._call("monmaptool", "--create", "--fsid", _FSID, "--addv", "a", f"[v1:{HOST}:{self._monitor}/0]", "monmap")
        self._call("ceph-authtool", "--create-keyring", "keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        # Otherwise one would have to ask the monitor for a disk, by a program in Python that wants a Python of Debian's.
        self._call("osdmaptool", "--createsimple", "1", "osdmap")
        self._call("ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap", "--osdmap", "osdmap", "--keyring", "keyring")
        self._serve("ceph-mon", "-f", "-i", "a")
        self.wait_for(self._monitor)
        self._call("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", _FSID)
        self._serve("ceph-osd", "-f", "-i", "0")
        user = ("--uid", KEY, "--display-name", KEY, "--access-key", KEY, "--secret-key", SECRET)
        self._call("radosgw-admin", "user", "create", *user)
        self._serve("radosgw", "-f", "-n", "client.rgw")
        self.wait_for(self._gateway)
        self._make_bucket()

    def _call(self, program: str, *words: str) -> None:
        self.run(str(CEPH / "usr" / "bin" / program), *words)

    def _serve(self, program: str, *words: str) -> None:
        self.spawn(str(CEPH / "usr" / "bin" / program), *words)

    def _make_bucket(self) -> None:
        """Create the bucket, signed in the old way, which fits in a few lines and which Ceph still accepts."""
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        signed = hmac.new(SECRET.encode(), f"PUT\n\n\n{date}\n/{BUCKET}".encode(), hashlib.sha1).digest()
        headers = {"Date": date, "Authorization": f"AWS {KEY}:{base64.b64encode(signed).decode()}"}
        with urlopen(Request(f"{self.endpoint}/{BUCKET}", method="PUT", headers=headers), timeout=_LIMIT):
            pass

    def _configuration(self) -> str:
        libraries = _LIBRARIES[0]
        return f"""\
[global]
fsid = {_FSID}
mon host = v1:{HOST}:{self._monitor}
auth cluster required = none
auth service required = none
auth client required = none
ms bind msgr2 = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd crush chooseleaf type = 0
osd crush update on start = false
osd class update on start = false
mon allow pool size one = true
mon data avail crit = 1
mon data avail warn = 1
erasure code dir = {libraries}/ceph/erasure-code
plugin dir = {libraries}/ceph
osd class dir = {libraries}/rados-classes
admin socket =
pid file =
run dir = {self.folder}
crash dir = {self.folder}
log file = {self.folder}/$name.log
mon cluster log file =
keyring = {self.folder}/keyring
[mon.a]
mon data = {self.folder}/mon
[osd.0]
osd data = {self.folder}/osd
osd objectstore = memstore
memstore device bytes = 536870912
[client.rgw]
rgw frontends = beast endpoint={HOST}:{self._gateway} tcp_nodelay=1
rgw thread pool size = 32
"""


class Azurite(_Engine):
    """Azure's emulator, with all blobs in memory."""

    def __init__(self) -> None:
        _skip_without("Azurite")
        super().__init__()
        self._port = take_port()
        self.endpoint = f"http://{HOST}:{self._port}/{_AZURE_ACCOUNT}"
        self.options = {"endpoint": self.endpoint, "account_name": _AZURE_ACCOUNT, "account_key": _AZURE_KEY}

    def _start(self) -> None:
        words = ("--silent", "--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry")
        self.spawn("node", str(AZURITE), "--blobPort", str(self._port), *words)
        self.wait_for(self._port)
        self._make_container()

    def _make_container(self) -> None:
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        lines = ["PUT", *[""] * 11, f"x-ms-date:{date}", "x-ms-version:2021-08-06"]
        text = "\n".join([*lines, f"/{_AZURE_ACCOUNT}/{_AZURE_ACCOUNT}/{BUCKET}", "restype:container"])
        signed = base64.b64encode(hmac.digest(base64.b64decode(_AZURE_KEY), text.encode(), "sha256")).decode()
        headers = {
            "x-ms-date": date,
            "x-ms-version": "2021-08-06",
            "Authorization": f"SharedKey {_AZURE_ACCOUNT}:{signed}",
            "Content-Length": "0",
        }
        with urlopen(Request(f"{self.endpoint}/{BUCKET}?restype=container", method="PUT", headers=headers), timeout=60):
            pass


def arguments(options: Mapping[str, str]) -> Sequence[str]:
    """Return options as words of a command line."""
    return [f"--remote-option={name}={value}" for name, value in options.items()]
