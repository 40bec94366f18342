"""nsqd's HTTP server: a fast path for publishing on the poller, and an ASGI application for everything else."""

from __future__ import annotations

from nsqcommon.secure import SecureHandler
from nsqd.http.api import make_app, refuse_plain
from nsqd.http.guard import Guard
from nsqd.http.history import HistoryReads
from nsqd.http.node import NodeInfo
from nsqd.http.publishing import Publishing
from nsqd.http.quick import QuickHttp, QuickRoutes
from nsqd.http.standby import make_standby_app

__all__ = [
    "Guard",
    "HistoryReads",
    "NodeInfo",
    "Publishing",
    "QuickHttp",
    "QuickRoutes",
    "SecureHandler",
    "make_app",
    "make_standby_app",
    "refuse_plain",
]
