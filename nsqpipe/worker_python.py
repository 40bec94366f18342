"""The Python of Spark's workers on this machine, as a command of its own: `nsqpipe-worker -m pyspark.daemon ...`.

Spark puts `pyspark.zip` at the front of the path of each Python that it starts. Modules in it have no bytecode, so each
process compiles them again, which takes 0.9 s of its 1.2 s of startup. The installed modules are the same, and have
bytecode, so this command removes the archive from the path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

COMMAND: Final = "nsqpipe-worker"
_PATH: Final = "PYTHONPATH"


def main() -> None:
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], without_zips(os.environ))  # nosec B606


def without_zips(environment: Mapping[str, str]) -> dict[str, str]:
    paths = environment.get(_PATH, "").split(os.pathsep)
    kept = [path for path in paths if not _is_of_spark(Path(path).name)]
    return {**environment, _PATH: os.pathsep.join(kept)}


def _is_of_spark(name: str) -> bool:
    return name == "pyspark.zip" or (name.startswith("py4j-") and name.endswith("-src.zip"))


def worker_python() -> str:
    """Return the command for PYSPARK_PYTHON: plain Python if we aren't installed, for example with --py-files."""
    command = Path(sys.executable).with_name(COMMAND)
    return str(command if command.exists() else sys.executable)
