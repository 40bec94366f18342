"""What a figure depends on besides our code: machine and versions. No names of hosts, people or folders."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from nsqcommon.version import NSQ_VERSION, suite_version

ROOT = Path(__file__).resolve().parents[1]


def describe_machine() -> dict[str, object]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "model": _field(Path("/proc/cpuinfo"), "model name"),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "is_virtual": "hypervisor" in _field(Path("/proc/cpuinfo"), "flags").split(),
        "load_average": load_average(),
    }


def describe_versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "trio": metadata.version("trio"),
        "nsq-suite": suite_version(),
        "nsq": NSQ_VERSION,
        "commit": _commit(),
    }


def load_average() -> float:
    return os.getloadavg()[0]


def _field(path: Path, name: str) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _commit() -> str:
    """Return the commit that was measured, with "+" if the daemon's code differs from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "nsqd", "common")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
