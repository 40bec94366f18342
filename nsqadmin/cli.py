"""The command `nsqadmin`, including `nsqadmin decoders`."""

from __future__ import annotations

import sys

from nsqcommon.entry import hold_signals, needs_extra


def main() -> None:
    if sys.argv[1:2] == ["decoders"]:
        from nsqadmin.decoding import cli as decoders  # imported here, because the daemon doesn't need it

        sys.exit(decoders.main(sys.argv[2:]))
    # First, before the slow imports, so that a signal during them waits until its handlers exist.
    hold_signals()
    with needs_extra("nsqadmin", "admin"):
        from nsqadmin.daemon import run
        from nsqadmin.options import Options
        from nsqcommon.daemon import run_daemon

    sys.exit(run_daemon("nsqadmin", Options, run))
