"""The command `nsqd`."""

from __future__ import annotations

import sys

from common.daemon import run_daemon
from nsqd.daemon import run
from nsqd.options import Options


def main() -> None:
    sys.exit(run_daemon("nsqd", Options, run))
