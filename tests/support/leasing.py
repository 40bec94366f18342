"""What consumers over HTTP need, with small bounds."""

from __future__ import annotations

from typing import Any

from nsqd.broker.broker import Broker
from nsqd.broker.leases import LeaseLimits, Leases
from nsqd.http.leasing import LeaseSettings, Leasing

SETTINGS = LeaseSettings(lease=60.0, longest_lease=900.0, longest_delay_ms=3_600_000)


def bounds(*, in_channel: int = 5000, of_holder: int = 3000, waiting: int = 10, consumers: int = 0) -> LeaseLimits:
    return LeaseLimits(in_channel=in_channel, of_holder=of_holder, waiting=waiting, consumers=consumers)


def leasing_of(broker: Broker, within: LeaseLimits | None = None, **asked: Any) -> Leasing:
    return Leasing(Leases(broker.turn, within or bounds()), SETTINGS, **asked)
