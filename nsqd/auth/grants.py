"""AUTH: the query for an authorization server, and the grant decoded from its answer.

There is no I/O here. A client passes an `AuthQuestion` to nsqd/auth/servers.py, and resumes when it gets a `Grant`, or
None if no server has granted anything (nsqd/client/authorization.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Final, Self
from urllib.parse import urlencode

from nsqcommon.nsq_json import Fields, JsonError, dumps, read
from nsqd.auth.expressions import Expression, ExpressionError

SUBSCRIBE: Final = "subscribe"
PUBLISH: Final = "publish"

_PERMISSIONS: Final = frozenset((SUBSCRIBE, PUBLISH))
# Per answer. Expressions other than plain names cost steps, and each new topic name is matched against all of them.
_MOST_STEPS: Final = 20_000
_MOST_EXPRESSIONS: Final = 20_000  # per answer, because the client's grant keeps them in memory
_MOST_REMEMBERED: Final = 1024  # cached decisions per client, because a client may name any number of topics


class GrantError(ValueError):
    """The server's answer is invalid, by NSQ's rules or our limits."""


class GrantEntry:
    """One authorization: patterns of topics and channels, and the permissions on these."""

    __slots__ = ("_channels", "_permissions", "_topic")

    def __init__(self, topic: Expression, channels: list[Expression], permissions: frozenset[str]) -> None:
        self._permissions = permissions
        self._topic = topic
        self._channels = channels

    @classmethod
    def of(cls, topic: str, channels: list[str], permissions: list[str]) -> Self:
        """Compile an authorization. Raises GrantError."""
        return cls(_expression(topic), [_expression(channel) for channel in channels], _permissions_in(permissions))

    def allows(self, topic: str, channel: str) -> bool:
        """Return whether this entry allows subscribing or, with an empty `channel`, publishing.

        As in NSQ, publishing needs a channel pattern that matches the empty name. For example, an entry with
        `channels: ["^billing$"]` allows no publishing, whatever its permissions are.
        """
        if (SUBSCRIBE if channel else PUBLISH) not in self._permissions:
            return False
        return self._topic.found_in(topic) and any(it.found_in(channel) for it in self._channels)


class Grant:
    """The rights granted to one client, by an authorization server or the rights file."""

    __slots__ = ("_decided", "entries", "identity", "identity_url", "ttl")

    def __init__(self, *, ttl: int, identity: str, identity_url: str, entries: list[GrantEntry]) -> None:
        self.ttl = ttl  # seconds
        self.identity = identity
        self.identity_url = identity_url
        self.entries = entries
        self._decided: dict[tuple[str, str], bool] = {}

    def allows(self, topic: str, channel: str = "") -> bool:
        decided = self._decided.get((topic, channel))
        if decided is None:
            if len(self._decided) >= _MOST_REMEMBERED:
                self._decided.clear()
            decided = any(entry.allows(topic, channel) for entry in self.entries)
            self._decided[topic, channel] = decided
        return decided

    @property
    def reply(self) -> bytes:
        """The JSON reply to AUTH."""
        return dumps(
            {
                "identity": self.identity,
                "identity_url": self.identity_url,
                "permission_count": len(self.entries),
            }
        )


def decode_grant(body: bytes) -> Grant:
    """Decode a server's answer. Raises GrantError."""
    decoding = decode_grant_stepwise(body)
    while True:
        try:
            next(decoding)
        except StopIteration as done:
            grant: Grant = done.value
            return grant


def decode_grant_stepwise(body: bytes) -> Generator[None, None, Grant]:
    """Decode a server's answer, one expression per step, because thousands of them take seconds. Raises GrantError."""
    try:
        fields = Fields(read(body))
        ttl = fields.integer("ttl")
        identity, identity_url = fields.text("identity"), fields.text("identity_url")
        entries: list[GrantEntry] = []
        steps = count = 0
        for item in fields.items("authorizations"):
            of_entry = Fields(item)
            texts = [of_entry.text("topic"), *_texts(of_entry, "channels")]
            permissions = _permissions_in(_texts(of_entry, "permissions"))
            expressions: list[Expression] = []
            for text in texts:
                expressions.append(_expression(text))
                steps += expressions[-1].steps
                count += 1
                if steps > _MOST_STEPS:
                    raise GrantError(f"all expressions together take more than {_MOST_STEPS} steps")
                if count > _MOST_EXPRESSIONS:
                    raise GrantError(f"more than {_MOST_EXPRESSIONS} expressions")
                yield
            entries.append(GrantEntry(expressions[0], expressions[1:], permissions))
    except JsonError as error:
        raise GrantError(str(error)) from error
    if ttl <= 0:
        raise GrantError(f"invalid TTL {ttl} (must be >0)")
    return Grant(ttl=ttl, identity=identity, identity_url=identity_url, entries=entries)


def _permissions_in(permissions: list[str]) -> frozenset[str]:
    for permission in permissions:
        if permission not in _PERMISSIONS:
            raise GrantError(f"unknown permission {permission}")
    return frozenset(permissions)


def _texts(fields: Fields, name: str) -> list[str]:
    texts = []
    for item in fields.items(name):
        if item is not None and not isinstance(item, str):
            raise GrantError(f"{name}: expected strings")
        texts.append(item or "")  # null decodes to an empty string, as in Go
    return texts


@lru_cache(maxsize=1024)
def _expression(text: str) -> Expression:
    """Compile an expression. Raises GrantError."""
    try:
        return Expression(text)
    except ExpressionError as error:
        raise GrantError(f"unable to compile {text!r}: {error}") from error


# Questions


class AuthQuestion:
    """A client's request for a grant. `answer` is called once, in a turn, unless `waits` is False by then."""

    __slots__ = ("answer", "common_name", "drop", "remote_ip", "secret", "tls", "waits")

    def __init__(
        self,
        secret: bytes,
        *,
        remote_ip: str,
        tls: bool,
        common_name: str,
        answer: Callable[[Grant | None], None],
        drop: Callable[[], None],
    ) -> None:
        self.secret = secret
        self.remote_ip = remote_ip
        self.tls = tls
        self.common_name = common_name
        self.answer = answer
        self.drop = drop  # closes the connection if `answer` fails because of a bug
        self.waits = True

    def as_query(self) -> str:
        """Encode the question as the query of a GET."""
        return urlencode(
            {
                "common_name": self.common_name,
                "remote_ip": self.remote_ip,
                "secret": self.secret,
                "tls": self._tls,
            }
        )

    def as_json(self) -> bytes:
        """Encode the question as the body of a POST. As in NSQ, which encodes Go's url.Values, each value is a list."""
        return dumps(
            {
                "common_name": [self.common_name],
                "remote_ip": [self.remote_ip],
                "secret": [self.secret.decode("utf-8", "surrogateescape")],
                "tls": [self._tls],
            }
        )

    @property
    def _tls(self) -> str:
        return "true" if self.tls else "false"
