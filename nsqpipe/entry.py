"""The command `nsqpipe`, from its first line on: whenever a signal comes, it ends with status 0 and says that it was stopped."""

from __future__ import annotations

import signal
import sys

from common.entry import hold_signals, needs_extra, release_signals


def main() -> None:
    hold_signals()
    with needs_extra("nsqpipe", "spark"):
        from nsqpipe.cli import app

    # Until there are queries to stop, SIGTERM ends a command as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        release_signals()
        app(prog_name="nsqpipe")
    except KeyboardInterrupt:
        sys.stderr.write("nsqpipe: stopped\n")
