"""`python -m bench peers --go-nsqd` measures the original with every load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.peers.loads import BACKLOG, FIGURES
from tests.original.programs import program
from tests.support.process import ROOT

LIMIT = 300.0
OURS, DISK, DEFAULT = "nsqd-pure", "go-nsqd-disk", "go-nsqd-default"


def test_gos_nsqd_is_measured_with_every_load(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench", "peers", "--quick", "--build=pure", f"--json={path}", "--messages=2000"]
    done = subprocess.run(
        [*command, f"--go-nsqd={program('nsqd')}", f"--peers={OURS},{DISK},{DEFAULT}", "--seconds=0.1"],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = {(row["load"], row["peer"]): row for row in result["rows"]}
    behind = {(it["load"], it["peer"]) for it in result["missing"]}  # a busy machine may be too slow
    names = {figure.name for figure in FIGURES}
    assert {load for load, peer in rows.keys() | behind if peer == DISK} == names
    assert {load for load, peer in rows.keys() | behind if peer == DEFAULT} == names - {it.name for it in BACKLOG}
    # On disk it loses all or nothing: all until its first flush, after 2,500 messages or 2 s.
    assert rows["kill", DISK]["median"] in (0, 100)
    assert rows["kill", DEFAULT]["median"] > 0, "what is in memory only"
