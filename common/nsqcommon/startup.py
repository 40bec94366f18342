"""The exception for everything that keeps a daemon from starting."""

from __future__ import annotations


class StartupError(Exception):
    """The daemon cannot start. An operator sees nothing but the message, so it says what to mend.

    `nsqcommon.daemon` turns it into one line on stderr and exit status 1.
    """
