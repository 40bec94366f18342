"""The command `nsqpipe`, from its first line on: SIGINT or SIGTERM, whenever it comes, ends it with status 0 and a word."""

from __future__ import annotations

import signal

from common.entry import hold_signals, needs_extra


def main() -> None:
    hold_signals()
    with needs_extra("nsqpipe", "spark"):
        from nsqpipe.cli import app

    # Until there are queries to stop, SIGTERM ends a command as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(prog_name="nsqpipe")  # which releases the signals as soon as it can tell of them
