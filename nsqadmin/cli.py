"""The command `nsqadmin`."""

from __future__ import annotations

import sys

from common.daemon import run_daemon
from nsqadmin.daemon import run
from nsqadmin.options import Options


def main() -> None:
    sys.exit(run_daemon("nsqadmin", Options, run))
