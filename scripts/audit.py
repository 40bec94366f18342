"""Ask an index for known vulnerabilities of the installed packages: `python -m scripts.audit`.

Many machines cannot reach an index that knows them. Then the script says so in one line and succeeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

_LIMIT: Final = 120  # seconds


def main() -> int:
    packages, trouble = _ask()
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        print(f"pip-audit: skipped, as no index told of known vulnerabilities: {trouble}")
        return 0
    unsafe = [(package, flaw) for package in audited for flaw in package["vulns"]]
    for package, flaw in unsafe:
        fixed = ", ".join(flaw.get("fix_versions", ())) or "no version yet"
        print(f"{package['name']} {package['version']}: {flaw['id']}, fixed in {fixed}")
    return 1 if unsafe else 0


def _ask() -> tuple[list[dict[str, Any]], str]:
    """Return what pip-audit says of each package, and why if that is nothing."""
    command = [sys.executable, "-m", "pip_audit", "--local", "--progress-spinner=off", "--format=json"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return [], f"no answer in {_LIMIT} s"
    try:
        packages: list[dict[str, Any]] = json.loads(result.stdout)["dependencies"]
    except (ValueError, KeyError):
        return [], result.stderr.strip().rpartition("\n")[2]
    return packages, next((package["skip_reason"] for package in packages if "skip_reason" in package), "no packages")


if __name__ == "__main__":
    sys.exit(main())
