"""The command `nsqlookupd`."""

from __future__ import annotations

import sys

from nsqcommon.entry import hold_signals


def main() -> None:
    # Before the slow imports: a signal that arrives during them has to wait for its handlers.
    hold_signals()
    from nsqcommon.daemon import run_daemon
    from nsqlookupd.daemon import run
    from nsqlookupd.options import Options

    sys.exit(run_daemon("nsqlookupd", Options, run))
