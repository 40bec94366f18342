"""The command `nsqadmin`."""

from __future__ import annotations

import sys

from common.entry import hold_signals, needs_extra


def main() -> None:
    # First of all, before the slow imports: a signal that comes during them must wait until its handlers are there.
    hold_signals()
    with needs_extra("nsqadmin", "admin"):
        from common.daemon import run_daemon
        from nsqadmin.daemon import run
        from nsqadmin.options import Options

    sys.exit(run_daemon("nsqadmin", Options, run))
