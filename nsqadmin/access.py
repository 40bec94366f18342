"""Roles and rights: decides what a user may do. `http.login` finds out the names of users and groups."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final

Network = IPv4Network | IPv6Network


class Right(StrEnum):
    VIEW = "viewer"  # see numbers
    PAYLOAD = "payload"  # see the content of messages
    PUBLISH = "publish"
    OPERATE = "operator"  # pause, create
    ADMIN = "admin"  # delete, empty, remove from a node, move a channel, republish ranges


_CHANGING: Final = frozenset((Right.PUBLISH, Right.OPERATE, Right.ADMIN))
# The right to delete includes the right to pause, and every right includes seeing the topic.
_INCLUDED: Final[Mapping[Right, frozenset[Right]]] = {
    Right.VIEW: frozenset((Right.VIEW,)),
    Right.PAYLOAD: frozenset((Right.VIEW, Right.PAYLOAD)),
    Right.PUBLISH: frozenset((Right.VIEW, Right.PUBLISH)),
    Right.OPERATE: frozenset((Right.VIEW, Right.OPERATE)),
    Right.ADMIN: frozenset(Right),
}
EVERYTHING: Final = "*"
EDIT: Final = "edit"  # the action that replaces a message by an edited copy, in addresses and in the audit log
_NEEDED_TO_EDIT: Final = (Right.PAYLOAD, Right.PUBLISH, Right.OPERATE)
_WITHHELD: Final = "an error, whose words are shown to users who see all topics"


class BadRoles(ValueError):
    """The roles file is invalid; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A set of rights, and the users who have it: those whose name or one of whose groups matches."""

    name: str
    can: frozenset[Right]
    users: tuple[str, ...] = ()  # names or patterns (`*`)
    groups: tuple[str, ...] = ()  # names or patterns
    topics: tuple[str, ...] = (EVERYTHING,)  # patterns of the topics where the role applies

    def is_of(self, user: str, groups: Iterable[str]) -> bool:
        return _matches(user, self.users) or any(_matches(group, self.groups) for group in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A user with their roles."""

    user: str = ""
    groups: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    refusal: str = ""  # why changes are refused to everyone; empty if they aren't
    can_publish: bool = False  # --enable-publish was given
    has_session: bool = False  # logged in by OIDC, so pages offer to log out

    def may(self, right: Right, topic: str = "") -> bool:
        return not self.why_not(right, topic)

    def why_not(self, right: Right, topic: str = "") -> str:
        """Return why the user lacks the right, or "". Without a topic, having the right to any topic is enough."""
        if right in _CHANGING and self.refusal:
            return self.refusal
        if right is Right.PUBLISH and not self.can_publish:
            return "publishing is not enabled (--enable-publish)"
        if any(right in role.can and (not topic or _matches(topic, role.topics)) for role in self.roles):
            return ""
        return self._lacks(right, topic)

    def why_not_everywhere(self, right: Right) -> str:
        """Return why the user lacks the right to all topics, or "". Actions on the whole cluster need that."""
        if reason := self.why_not(right):
            return reason
        if any(right in role.can and EVERYTHING in role.topics for role in self.roles):
            return ""
        return self._lacks(right, "all topics")

    def why_not_edit(self, topic: str) -> str:
        """Return why the user may not edit messages of a topic; "": they may.

        Masked text is no exception: a user without `payload` would overwrite the hidden parts with ***, or could find
        out which text is hidden by changing what is around it.
        """
        return next((why for right in _NEEDED_TO_EDIT if (why := self.why_not(right, topic))), "")

    def _lacks(self, right: Right, what: str) -> str:
        who = f"{self.user} does" if self.user else "you do"
        where = f" for {what}" if what and any(right in role.can for role in self.roles) else ""
        return f"{who} not have the right '{right}'{where}"

    def sees(self, topic: str) -> bool:
        return self.may(Right.VIEW, topic)

    @property
    def sees_everything(self) -> bool:
        """True if this user sees all topics, including those created later."""
        return any(EVERYTHING in role.topics and Right.VIEW in role.can for role in self.roles)

    def quoted(self, text: str) -> str:
        """Return an error in the words of a node or nsqlookupd, or a placeholder if it may name hidden topics."""
        return text if not text or self.sees_everything else _WITHHELD


ALL_RIGHTS: Final = Role(name="everybody", can=frozenset(Right), users=(EVERYTHING,))
ADMINS: Final = Role(name="admin", can=frozenset(Right))
# Without configured roles, users who aren't admins may see numbers and messages.
READERS: Final = Role(name="reader", can=frozenset((Right.VIEW, Right.PAYLOAD)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The configuration of access."""

    roles: tuple[Role, ...] = ()
    admin_users: tuple[str, ...] = ()
    refusal: str = ""  # why changes are refused to everyone; empty if they aren't
    can_publish: bool = False  # --enable-publish was given

    @property
    def is_open(self) -> bool:
        """True if everyone may do everything, as in NSQ without `--admin-user`."""
        return not self.roles and not self.admin_users

    @property
    def shows_payload_to_all(self) -> bool:
        """True if every user has the right `payload` for every topic."""
        return not self.roles

    def identity(self, user: str, groups: Iterable[str] = (), *, has_session: bool = False) -> Identity:
        """Return the user with their roles."""
        groups = tuple(groups)
        return Identity(
            user=user,
            groups=groups,
            roles=self._roles_of(user, groups),
            refusal=self.refusal,
            can_publish=self.can_publish,
            has_session=has_session,
        )

    def is_about(self, group: str) -> bool:
        """Return True if a role names this group."""
        return any(_matches(group, role.groups) for role in self.roles)

    def _roles_of(self, user: str, groups: tuple[str, ...]) -> tuple[Role, ...]:
        if self.is_open:
            return (ALL_RIGHTS,)
        if user in self.admin_users:
            return (ADMINS,)
        if not self.roles:
            return (READERS,)
        return tuple(role for role in self.roles if role.is_of(user, groups))


def parse_roles(text: str) -> tuple[Role, ...]:
    """Parse the roles file, which is TOML.

        [[role]]
        name = "oncall"
        users = ["ana"]
        groups = ["sre"]
        can = ["viewer", "operator"]
        topics = ["orders*"]

    Raise BadRoles for anything unknown: it may have been meant to keep someone out.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRoles(str(error)) from error
    if unknown := set(document) - {"role"}:
        raise BadRoles(f"unknown key {min(unknown)}; expected [[role]]")
    roles = document.get("role", [])
    if not isinstance(roles, list) or not roles:
        raise BadRoles("expected at least one [[role]]")
    return tuple(_role(table, number) for number, table in enumerate(roles, 1))


def _role(table: object, number: int) -> Role:
    if not isinstance(table, dict):
        raise BadRoles(f"role {number}: expected a table")
    name = table.get("name", f"role {number}")
    if not isinstance(name, str):
        raise BadRoles(f"role {number}: name must be a string")
    if unknown := set(table) - {"name", "users", "groups", "can", "topics"}:
        raise BadRoles(f"{name}: unknown key {min(unknown)}")
    can: set[Right] = set()
    for word in _words(table, "can", name):
        try:
            can |= _INCLUDED[Right(word)]
        except ValueError:
            raise BadRoles(f"{name}: unknown right {word!r}; there are {', '.join(Right)}") from None
    if not can:
        raise BadRoles(f"{name}: can= is empty; expected at least one of {', '.join(Right)}")
    users, groups = _words(table, "users", name), _words(table, "groups", name)
    if not users and not groups:
        raise BadRoles(f"{name}: expected users= or groups=")
    topics = _words(table, "topics", name) or (EVERYTHING,)
    return Role(name=name, can=frozenset(can), users=users, groups=groups, topics=topics)


def _words(table: Mapping[str, Any], key: str, name: str) -> tuple[str, ...]:
    words = table.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise BadRoles(f"{name}: {key} must be a list of strings")
    return tuple(words)


def _matches(word: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(word, pattern) for pattern in patterns)


# Networks


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse networks such as `10.0.0.0/8`; host bits may be set. Raise ValueError."""
    return tuple(ip_network(text, strict=False) for text in texts)


def is_within(address: str, allowed: Iterable[Network]) -> bool:
    """Return True if an address is in one of the networks. Raise ValueError if it isn't an address.

    An IPv4 address that came over an IPv6 socket counts as IPv4.
    """
    ip = ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if ip.version == 6 else None
    return any((mapped or ip) in network for network in allowed)
