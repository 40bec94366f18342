"""Settings of the broker as nsqd has them by default, but for what a test is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nsqd import start
from nsqd.broker.settings import BrokerSettings
from nsqd.options import Options

_DEFAULTS = start.broker_settings(Options())


def broker_settings(**changes: Any) -> BrokerSettings:
    return replace(_DEFAULTS, **changes)
