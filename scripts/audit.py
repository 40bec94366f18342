"""Asks an index whether anything that is installed is known to be unsafe: `python -m scripts.audit`.

Many machines reach no index that could tell. Then one line says so, and it is no failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

_LIMIT: Final = 120  # seconds


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--local", "--progress-spinner=off", "--format=json"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
        found: list[dict[str, Any]] = json.loads(result.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        found = []
    audited = [package for package in found if "vulns" in package]
    if not audited:
        print("pip-audit: no index here can be asked about what is known to be unsafe")
        return 0
    unsafe = [(package, flaw) for package in audited for flaw in package["vulns"]]
    for package, flaw in unsafe:
        mended = ", ".join(flaw.get("fix_versions", ())) or "nowhere yet"
        print(f"{package['name']} {package['version']}: {flaw['id']}, mended in {mended}")
    return 1 if unsafe else 0


if __name__ == "__main__":
    sys.exit(main())
