"""The exceptions for anything that keeps a daemon from starting, or from going on."""

from __future__ import annotations


class StartupError(Exception):
    """The daemon can't start. The operator sees only the message, so it has to say what to fix.

    `nsqcommon.daemon` turns it into one line on stderr and this exit status.
    """

    exit_status = 1


class TakenOver(StartupError):
    """Another process goes on with what was this daemon's. A service manager must not start this one again."""

    exit_status = 3
