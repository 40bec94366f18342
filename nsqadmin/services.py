"""All that handlers may use, in one place: pages, both APIs and metrics get it, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqadmin.authz import Policy
    from nsqadmin.options import Options
    from nsqadmin.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    options: Options
    view: View
    policy: Policy
