"""Default values of IDENTIFY, which the configuration overrides."""

from __future__ import annotations

import platform

from nsqclient.core.connection import Identity
from nsqcommon.version import suite_version


def our_identity() -> Identity:
    """Return this process's host name and user agent."""
    return Identity(hostname=platform.node(), user_agent=f"nsqclient/{suite_version()}")
