"""The exception for anything that keeps a daemon from starting."""

from __future__ import annotations


class StartupError(Exception):
    """The daemon can't start. The operator sees only the message, so it has to say what to fix.

    `nsqcommon.daemon` turns it into one line on stderr and exit status 1.
    """
