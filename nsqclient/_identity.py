"""What is said about ourselves where nobody has said anything else."""

from __future__ import annotations

import platform

from common.version import suite_version
from nsqclient._connection import Identity


def our_identity() -> Identity:
    return Identity(hostname=platform.node(), user_agent=f"nsqclient/{suite_version()}")
