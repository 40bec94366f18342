"""The one exception for whatever keeps a daemon from starting."""

from __future__ import annotations


class StartupError(Exception):
    """The daemon cannot start. The message is all that an operator sees, so it says what to mend.

    `common.daemon` turns it into one line on stderr and exit status 1.
    """
