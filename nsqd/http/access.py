"""The access rule of each route: the role it needs, and whether it concerns one topic or the whole node.

You can't create a `GuardedRoute` without a `RequiredRole`, so the table of routes (`make_app`) is also the table of
rights. The scope depends only on the route. For example, `topic=` on a node route has no effect on rights.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nsqcommon.http_api import Route
from nsqd.auth.rights import Role


class Scope(StrEnum):
    TOPIC = "one topic"  # given by `topic=`; a holder limited to certain topics must pass one of these
    NODE = "the node"  # closed to holders limited to certain topics


# Compared by identity because it is a dictionary key on the publishing path, and hashing the fields is slow.
@dataclass(frozen=True, slots=True, eq=False)
class RequiredRole:
    role: Role | None  # None: open to everyone
    scope: Scope
    or_role: Role | None = None  # an alternative to `role`
    and_role: Role | None = None  # needed besides `role`


OPEN: Final = RequiredRole(None, Scope.NODE)
PUBLISH: Final = RequiredRole(Role.PUBLISH, Scope.TOPIC)
PUBLISH_OR_OPERATE: Final = RequiredRole(Role.PUBLISH, Scope.TOPIC, Role.OPERATE)
CONSUME: Final = RequiredRole(Role.CONSUME, Scope.TOPIC, Role.READ)
READ_TOPIC: Final = RequiredRole(Role.READ, Scope.TOPIC)
READ_NODE: Final = RequiredRole(Role.READ, Scope.NODE)
OPERATE_TOPIC: Final = RequiredRole(Role.OPERATE, Scope.TOPIC)
OPERATE_NODE: Final = RequiredRole(Role.OPERATE, Scope.NODE)
OPERATE_AND_PUBLISH: Final = RequiredRole(Role.OPERATE, Scope.TOPIC, and_role=Role.PUBLISH)
ADMIN_TOPIC: Final = RequiredRole(Role.ADMIN, Scope.TOPIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedRoute(Route):
    """A route with its access rule."""

    access: RequiredRole
    change: str = ""  # the action for `/changes` (nsqd/http/changes.py); "" if the route changes nothing
