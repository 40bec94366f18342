"""The command `nsqlookupd`."""

from __future__ import annotations

import sys

from common.daemon import run_daemon
from nsqlookupd.daemon import run
from nsqlookupd.options import Options


def main() -> None:
    sys.exit(run_daemon("nsqlookupd", Options, run))
