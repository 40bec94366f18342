"""The values of IDENTIFY that hold unless the configuration sets them."""

from __future__ import annotations

import platform

from nsqclient.core.connection import Identity
from nsqcommon.version import suite_version


def our_identity() -> Identity:
    """Return host name and user agent of this process."""
    return Identity(hostname=platform.node(), user_agent=f"nsqclient/{suite_version()}")
