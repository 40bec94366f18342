"""The command `nsqd`, including `nsqd fsck`, `nsqd policy` and `nsqd remote`."""

from __future__ import annotations

import sys

from nsqcommon.entry import hold_signals


def main() -> None:
    if sys.argv[1:2] == ["fsck"]:
        from nsqd.fsck import cli as fsck  # imported here, because a broker doesn't need it

        sys.exit(fsck.main(sys.argv[2:]))
    if sys.argv[1:2] == ["policy"]:
        from nsqd.policy import cli as policy

        sys.exit(policy.main(sys.argv[2:]))
    if sys.argv[1:2] == ["remote"]:
        from nsqd.remote import cli as remote

        sys.exit(remote.main(sys.argv[2:]))
    hold_signals()
    from nsqcommon.daemon import run_daemon
    from nsqd.options import Options
    from nsqd.workers.run import run

    sys.exit(run_daemon("nsqd", Options, run))
