"""The rules for clients, from nsqd's options. The parts of a client apply them to its commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqcommon.wire.identify import ClientSettings, ServerFeatures
    from nsqcommon.wire.limits import SizeLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRules:
    limits: SizeLimits  # in bytes
    features: ServerFeatures  # that IDENTIFY may ask for
    defaults: ClientSettings  # the settings of a client that doesn't send IDENTIFY
    max_req_timeout_ms: int  # a longer timeout of REQ is reduced to this
    max_defer_timeout_ms: int  # a longer delay of DPUB is refused
    max_channel_consumers: int  # 0: no limit
    tls_required: bool = False
