"""The command `nsqlookupd`."""

from __future__ import annotations

import sys

from common.entry import hold_signals


def main() -> None:
    hold_signals()
    from common.daemon import run_daemon
    from nsqlookupd.daemon import run
    from nsqlookupd.options import Options

    sys.exit(run_daemon("nsqlookupd", Options, run))
