"""Topics that libraries use among themselves, such as Celery's broadcasts, and our own reports about jobs.

They come and go with workers and clients, and nothing is lost with them. So lists fold them away, and they are
never diagnosed.
"""

from __future__ import annotations

import re
from typing import Final

from nsqcommon.job_reports import TOPIC

# Celery's exchanges for commands, replies and events, as nsqjobs/celery/routing.py names them.
_is_celerys: Final = re.compile(
    r"(?:.*\.pidbox|celeryev|reply\.celery\.pidbox)(?:[.-].*)?#ephemeral", re.ASCII
).fullmatch


def is_internal(topic: str) -> bool:
    """Return True if only libraries use this topic, and no program of their users."""
    return topic == TOPIC or _is_celerys(topic) is not None
