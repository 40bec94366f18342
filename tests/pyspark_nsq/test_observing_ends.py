"""A process whose progress nobody reads any more ends as well as any other."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.process import ROOT


def test_progress_that_nobody_reads_any_more_ends_no_job() -> None:
    code = (
        "import sys\nfrom nsqpipe.progress import Progress\n"
        "with Progress(sys.stderr) as shown:\n    shown.stage('starting Spark')\n    shown.finish('done')\n"
        "print('also here', file=sys.stderr)\n"
    )
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-c", code], stderr=write, cwd=ROOT, timeout=150, check=False)
    finally:
        os.close(write)
    assert done.returncode == 0
