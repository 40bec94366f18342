"""Try clients whose tests take minutes to build, on our daemons: python -m tests.e2e.other_clients [NAME ...]

tokio-nsq    the suite that this Rust crate brings along: AUTH, TLS, deflate, snappy, look-up; needs cargo
nsq-client   a Java client of ours that uses it: publishing, batches, requeues, look-up; needs Maven and Java 17

Without a name both are tried. What they download and build stays in build/clients.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.command_line import argument, read_options
from tests.support.auth_server import AuthServer
from tests.support.certificates import make_certificates
from tests.support.process import ROOT, Nsqd, Nsqlookupd

BUILT: Final = ROOT / "build" / "clients"
PEERS: Final = Path(__file__).parent / "peers"
TOKIO_NSQ: Final = "0.14.0"


@dataclass(frozen=True, slots=True)
class Daemons:
    nsqd: Nsqd  # with TLS
    guarded: Nsqd  # with AUTH
    nsqlookupd: Nsqlookupd


@contextmanager
def running() -> Iterator[Daemons]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = make_certificates(folder)
        auth = stack.enter_context(AuthServer())
        nsqlookupd = stack.enter_context(Nsqlookupd())
        lookup = f"lookupd-tcp-address=127.0.0.1:{nsqlookupd.tcp[1]}", "broadcast-address=127.0.0.1"
        pair = f"tls-cert={made.certificate}", f"tls-key={made.key}"
        nsqd = stack.enter_context(Nsqd(folder / "nsqd", *lookup, *pair))
        guarded = stack.enter_context(Nsqd(folder / "guarded", f"auth-http-address={auth.address}"))
        yield Daemons(nsqd, guarded, nsqlookupd)


def tokio_nsq(daemons: Daemons) -> bool:
    """Run the crate's own suite, in a copy where its host names are addresses of our daemons."""
    tests = _crate() / "tests" / "test_live.rs"
    text = tests.with_suffix(".rs.orig").read_text()
    for name, port in (
        ("nsq:4150", daemons.nsqd.tcp[1]),
        ("nsqwithauth:4150", daemons.guarded.tcp[1]),
        ("nsqlookupd:4161", daemons.nsqlookupd.http_address[1]),
    ):
        for before in ('"', "//"):
            text = text.replace(before + name, f"{before}127.0.0.1:{port}")
    tests.write_text(text)
    command = ["cargo", "test", "--test", "test_live"]
    return _run(command, tests.parents[1], {"CARGO_TARGET_DIR": str(BUILT / "target")}).returncode == 0


def _crate() -> Path:
    """Return a copy of the crate, whose suite is kept as it was beside the one that runs."""
    copy = BUILT / f"tokio-nsq-{TOKIO_NSQ}"
    if copy.exists():
        return copy
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "Cargo.toml"
        (manifest.parent / "src").mkdir()
        (manifest.parent / "src" / "lib.rs").touch()
        manifest.write_text(
            '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n'
            f'[dependencies]\ntokio-nsq = "={TOKIO_NSQ}"\n'
        )
        told = _run(["cargo", "metadata", "--format-version=1"], manifest.parent, output=subprocess.PIPE)
        packages = json.loads(told.stdout)["packages"]
    (found,) = (Path(it["manifest_path"]).parent for it in packages if it["name"] == "tokio-nsq")
    shutil.copytree(found, copy)
    shutil.copy(copy / "tests" / "test_live.rs", copy / "tests" / "test_live.rs.orig")
    return copy


def nsq_client(daemons: Daemons) -> bool:
    """Publish and consume with peers/java/Peer.java, and compare."""
    jars = BUILT / "nsq-client"
    pom = PEERS / "java" / "pom.xml"
    _run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], ROOT)
    pub = [f"{word}-{number}" for word in ("plain", "requeue", "touch") for number in range(100)]
    mpub = [[f"many-{number}-{place}" for place in range(50)] for number in range(10)]
    expected = [*pub, *(body for bodies in mpub for body in bodies)]
    plan = {
        "host": "127.0.0.1",
        "port": daemons.nsqd.tcp[1],
        "lookupd": daemons.nsqlookupd.http_address[1],
        "topic": "java",
        "pub": pub,
        "mpub": mpub,
        "expected": expected,
    }
    done = subprocess.run(
        ["java", "-cp", f"{jars}/*", str(PEERS / "java" / "Peer.java")],
        input=json.dumps(plan),
        stdout=subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )
    if done.returncode:
        return False
    arrived = Counter(body for body, _, _ in json.loads(done.stdout.splitlines()[-1]))  # before it is its log
    channel = daemons.nsqd.channel("java", "channel")
    left = [channel[it] for it in ("depth", "in_flight_count", "deferred_count", "timeout_count", "requeue_count")]
    print(f"{len(arrived)} bodies of {len(expected)}, {arrived.total()} deliveries, left {left}")
    twice = Counter({body: 2 if body.startswith("requeue") else 1 for body in expected})
    return arrived == twice and left == [0, 0, 0, 0, 100]


CLIENTS: Final[Mapping[str, Callable[[Daemons], bool]]] = {"tokio-nsq": tokio_nsq, "nsq-client": nsq_client}


def _run(
    command: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None, output: int | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **(environ or {})}, stdout=output, check=output is not None
    )


@dataclass(frozen=True, kw_only=True)
class ClientsOptions:
    name: tuple[str, ...] = argument(f"some of {', '.join(CLIENTS)}; by default all", default=())

    def __post_init__(self) -> None:
        if unknown := set(self.name) - set(CLIENTS):
            raise ValueError(f"unknown clients: {', '.join(sorted(unknown))}")


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = read_options(
        ClientsOptions, arguments, name="python -m tests.e2e.other_clients", about=__doc__
    ).name or tuple(CLIENTS)
    BUILT.mkdir(parents=True, exist_ok=True)
    with running() as daemons:
        passed = {name: CLIENTS[name](daemons) for name in chosen}
    for name, has_passed in passed.items():
        print(f"{name}: {'passed' if has_passed else 'FAILED'}")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
