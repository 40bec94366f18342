"""The access rule of each route: which role it needs, and whether it is about one topic or about the node.

An `GuardedRoute` cannot be made without its `RequiredRole`, so the table of routes (`make_app`) is the table of rights too.
Nothing else decides what a path is about: a `topic=` given to a route of the node has no effect on rights.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nsqcommon.http_api import Route
from nsqd.auth.rights import Role


class Scope(StrEnum):
    TOPIC = "one topic"  # the one named by `topic=`; holders limited to topics must name one of theirs
    NODE = "the node"  # never open to holders limited to topics


# Compared by identity, which makes it a fast dictionary key for publishing.
@dataclass(frozen=True, slots=True, eq=False)
class RequiredRole:
    role: Role | None  # None: open to everyone
    scope: Scope
    or_role: Role | None = None  # which is enough as well


OPEN: Final = RequiredRole(None, Scope.NODE)
PUBLISH: Final = RequiredRole(Role.PUBLISH, Scope.TOPIC)
PUBLISH_OR_OPERATE: Final = RequiredRole(Role.PUBLISH, Scope.TOPIC, Role.OPERATE)
CONSUME: Final = RequiredRole(Role.CONSUME, Scope.TOPIC, Role.READ)
READ_TOPIC: Final = RequiredRole(Role.READ, Scope.TOPIC)
READ_NODE: Final = RequiredRole(Role.READ, Scope.NODE)
OPERATE_TOPIC: Final = RequiredRole(Role.OPERATE, Scope.TOPIC)
OPERATE_NODE: Final = RequiredRole(Role.OPERATE, Scope.NODE)
ADMIN_TOPIC: Final = RequiredRole(Role.ADMIN, Scope.TOPIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedRoute(Route):
    """A route of nsqd, with the access that it requires."""

    access: RequiredRole
    change: str = ""  # what it changes, for the record of changes (nsqd/http/changes.py); "" if it changes nothing
