"""`nsqpipe submit`: the same jobs on a cluster, by spark-submit. Nothing in them assumes a disk shared with nsqd."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark

from nsqpipe.failures import PipeFailed

_PACKAGES: Final = ("common", "pyspark_nsq", "pyspark_nsqtable", "nsqpipe")
_HERE: Final = Path(__file__).resolve().parent


def command_for(master: str, deploy_mode: str, conf: Sequence[str], job: Sequence[str]) -> list[str]:
    """Workers get our packages as a zip; pyarrow, and what a decoder needs, must be installed there."""
    words = [word for word in job if word != "--"]
    if not words:
        raise PipeFailed("which job? As in: nsqpipe submit --master spark://host:7077 -- land --topic clicks ...")
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = [text for pair in conf for text in ("--conf", pair)]
    return [
        str(program),
        *("--master", master, "--deploy-mode", deploy_mode, "--py-files", str(packed())),
        *settings,
        str(_HERE / "__main__.py"),
        *words,
    ]


def run(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False, env=None).returncode


def packed() -> Path:
    """Our packages' sources in one file that Spark hands to each worker."""
    folder = Path(tempfile.mkdtemp(prefix="nsqpipe-"))
    target = folder / "nsqpipe.zip"
    root = _HERE.parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                archive.write(path, path.relative_to(root))
    return target
