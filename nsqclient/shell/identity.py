"""The values of IDENTIFY that hold unless the configuration sets them."""

from __future__ import annotations

import platform

from nsqclient.core.connection import IdentifyDefaults
from nsqcommon.version import suite_version


def our_identity() -> IdentifyDefaults:
    """Return host name and user agent of this process."""
    return IdentifyDefaults(hostname=platform.node(), user_agent=f"nsqclient/{suite_version()}")
