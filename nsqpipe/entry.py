"""The entry point of `nsqpipe`. SIGINT or SIGTERM ends the command with status 0 and a line, even during startup."""

from __future__ import annotations

import signal

from nsqcommon.entry import hold_signals, needs_extra


def main() -> None:
    hold_signals()
    with needs_extra("nsqpipe", "spark"):
        from nsqpipe.cli import app

    # Until there are queries to stop, SIGTERM ends a command like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(prog_name="nsqpipe")  # releases the signals once it can report them
