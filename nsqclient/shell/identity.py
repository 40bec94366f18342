"""Default values of IDENTIFY, which the configuration overrides."""

from __future__ import annotations

import platform

from nsqclient.core.connection import IdentifyDefaults
from nsqcommon.version import suite_version


def our_identity() -> IdentifyDefaults:
    """Return this process's host name and user agent."""
    return IdentifyDefaults(hostname=platform.node(), user_agent=f"nsqclient/{suite_version()}")
