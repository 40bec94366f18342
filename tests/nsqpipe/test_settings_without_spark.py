"""The command line can be shown where nothing of Spark is installed."""

from __future__ import annotations

import subprocess
import sys

from tests.support.process import ROOT


def test_the_command_line_and_its_reference_need_no_spark() -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'deltalake', 'msgspec')))"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}; import nsqpipe.cli, scripts.nsqpipe_reference as it; it.page()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
