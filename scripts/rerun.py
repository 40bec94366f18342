"""Run pytest, then rerun alone the few tests that failed while the machine was busy with all the others.

    python scripts/rerun.py [pytest's options for both runs] -- [options and paths for the first run only]

A test of real processes shares two cores with hundreds of others, so a single one that times out says little about the
code. A test that does not depend on time, or that looks for rare losses, is never rerun. See decision 23.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

MOST: Final = 3  # more failures than that are not an accident
TESTS_FAILED: Final = 1  # pytest's exit status; any other one means that the run itself went wrong
RERUN: Final = tuple(f"tests/{it}/" for it in ("browser", "docs", "e2e", "integration", "project", "spark"))
# These look for a message that is lost or doubled once in a thousand runs.
RARE_LOSSES: Final = tuple(
    f"tests/e2e/test_{it}.py" for it in ("keyed_publishes", "kill9", "moving_nodes", "tools_to_file")
)
_LAST_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: list[str]) -> int:
    separator = arguments.index("--")
    of_both, of_the_first = arguments[:separator], arguments[separator + 1 :]
    status = _pytest(["--cache-clear", *of_both, *of_the_first])
    if status != TESTS_FAILED:
        return status
    failed = _failed()
    if reason := why_not_rerun(failed):
        print(f"== not rerun: {reason}", flush=True)
        return status
    print("== rerunning alone:", *failed, sep="\n", flush=True)
    status = _pytest([*of_both, *failed])
    if status == 0:
        print("== FLAKY, to be mended: failed in the full run, passed alone:", *failed, sep="\n", flush=True)
    return status


def why_not_rerun(failed: list[str]) -> str | None:
    if not failed:
        return "pytest has not recorded what failed"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed, more than {MOST}"
    firm = [it for it in failed if it.startswith(RARE_LOSSES) or not it.startswith(RERUN)]
    return f"a failure of {firm[0]} stands, however rare" if firm else None


def _pytest(arguments: list[str]) -> int:
    safe_path = ["-P"] if sys.flags.safe_path else []
    return subprocess.run([sys.executable, *safe_path, "-m", "pytest", *arguments]).returncode


def _failed() -> list[str]:
    try:
        recorded: dict[str, bool] = json.loads(_LAST_FAILED.read_text())
    except FileNotFoundError:
        return []
    return sorted(recorded)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
