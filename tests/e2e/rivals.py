"""The brokers that scripts/bring-rivals brings, in `python -m bench peers`: the long form `rivals` of scripts/test-long.

Each is tested as Debian's brokers are in test_peers_bench.py. Kafka alone starts a dozen JVMs, so this takes minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from bench.peers.loader import Loader
from bench.peers.loads import BACKLOG, CLIENT_TIMES, FIGURES
from bench.peers.variants import Promise, Variant, variants
from tests.support.needs import need
from tests.support.process import ROOT

COUNT: Final = 2_000
LIMIT: Final = 900.0
# A version that Debian 12 has doesn't count.
BROUGHT: Final = {"nats": "NATS 2.15", "valkey": "Valkey 9.1", "rabbitmq": "RabbitMQ 4", "kafka": "Kafka 4"}
RIVALS: Final = [it for it in variants() if it.name.partition("-")[0] in BROUGHT]


def check_that_all_comes_once(variant: Variant, loader: Loader, folder: Path) -> None:
    """Check that all that was acknowledged comes, and doesn't come again once its consumer has acknowledged it."""
    acked = folder / "acked"
    with variant.make(folder / "broker") as server:
        loader.run("declare", server, "q", at_most=60)
        sent = loader.run("pub", server, "q", at_most=60, count=COUNT, conns=3, batch=10, acked=acked, seconds=60)
        assert sent["msgs"] == sent["sent"] == COUNT
        assert server.depth(loader, "q") == COUNT
        got = loader.run("sub", server, "q", at_most=60, window=50, expect=acked, seconds=60, conns=2)
        assert got["missing"] == 0
        again = loader.run("sub", server, "q", at_most=60, quiet=0.3, seconds=60)
        assert again["msgs"] == 0


def why_absent(variant: Variant) -> str:
    wanted = BROUGHT[variant.name.partition("-")[0]]
    if variant.kind.lacks() or not variant.version.startswith(wanted):
        return f"no {wanted}: scripts/bring-rivals"
    return ""


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    need("C compiler")
    return Loader.compiled(tmp_path_factory.mktemp("loader"))


@pytest.mark.parametrize("variant", RIVALS, ids=lambda it: it.name)
def test_all_that_was_acknowledged_comes_and_does_not_come_again(
    variant: Variant, loader: Loader, tmp_path: Path
) -> None:
    if why := why_absent(variant):
        pytest.skip(why)
    check_that_all_comes_once(variant, loader, tmp_path)


@pytest.mark.parametrize("broker", BROUGHT)
def test_a_quick_run_measures_all_loads(broker: str, tmp_path: Path) -> None:
    need("C compiler")
    measured = [it for it in RIVALS if it.name.partition("-")[0] == broker]
    if why := why_absent(measured[0]):
        pytest.skip(why)
    path = tmp_path / "result.json"
    names = ",".join(it.name for it in measured)
    command = [sys.executable, "-m", "bench", "peers", "--quick", "--build=pure", f"--json={path}", f"--peers={names}"]
    command += ["--messages=2000", "--rest=2"]  # a quorum queue that is killed sooner comes back without a leader
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = {(row["load"], row["peer"]): row for row in result["rows"]}
    assert not [it for it in result["missing"] if it["load"] in ("rates", "backlog", "kill")], result["missing"]
    behind = {(it["load"], it["peer"]) for it in result["missing"]}  # a busy machine may be too slow
    for variant in measured:
        figures = {it.name for it in FIGURES if variant.has_backlog or it not in BACKLOG}
        if variant.client:
            figures |= {it.name for it in CLIENT_TIMES.values()}
        assert {load for load, peer in rows.keys() | behind if peer == variant.name} == figures, variant.name
        if variant.promise is not Promise.MEMORY:
            assert rows["kill", variant.name]["median"] == 0, f"{variant.name}: acknowledged, and gone after kill -9"
