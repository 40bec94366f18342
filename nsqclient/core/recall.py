"""Cancels and reschedules messages by key, over nsqd's HTTP: requests, answers, results. Nothing waits here.

Any nsqd of a producer may have the key, so all of them are asked, each at the HTTP address in its answer to IDENTIFY. A
request names its nsqd: with mapped ports the address may be another nsqd's, and we would take its "not found" for an
answer. `shell/recalling.py` sends the requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

from nsqclient.core.errors import ConnectError, Incomplete, NSQError, Unsupported
from nsqclient.core.publication import checked_key
from nsqclient.core.results import CancelResult, NodeFailure, RescheduleResult
from nsqcommon.durations import whole_milliseconds
from nsqcommon.wire.names import is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.publication import ProducerConnection
    from nsqcommon.wire.http_exchange import Headers

ACCEPT: Final = ("Accept", "application/vnd.nsq; version=1.0")

_OK: Final = 200
_NOT_FOUND: Final = 404
_NOT_THERE: Final = frozenset({"MESSAGE_NOT_FOUND", "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"})
_WRONG_NODE: Final = "WRONG_NODE"


ResultT = TypeVar("ResultT", CancelResult, RescheduleResult)
Counts = Mapping[str, int]  # channels by state of the message


@dataclass(frozen=True, slots=True)
class RecallTarget:
    """The HTTP address of a connection's nsqd."""

    host: str  # to connect to: the IP address of the connection, if it has one
    name: str  # of the server, for TLS and the Host header
    port: int
    is_secure: bool
    node: str
    headers: Headers


def cancel_target(topic: str, key: str, channel: str | None) -> str:
    """Return the target of a request, not yet with an nsqd's name. Raise ValueError for invalid names."""
    return "/message/cancel?" + _arguments(topic, key, channel)


def reschedule_target(topic: str, key: str, channel: str | None, delay: float) -> str:
    """Return the target of a request, not yet with an nsqd's name. Raise ValueError if nsqd would refuse it."""
    if not 0 <= delay < float("inf"):
        raise ValueError(f"a delay of {delay} seconds")
    return f"/message/due?{_arguments(topic, key, channel)}&defer={whole_milliseconds(delay)}"


def _arguments(topic: str, key: str, channel: str | None) -> str:
    if not is_valid_name(topic):
        raise ValueError(f"invalid topic name {topic!r}")
    if is_ephemeral(topic):
        raise ValueError(f"messages of an ephemeral topic cannot be named: {topic!r}")
    arguments = {"topic": topic, "key": checked_key(key).decode()}
    if channel is not None:
        if not is_valid_name(channel):
            raise ValueError(f"invalid channel name {channel!r}")
        arguments["channel"] = channel
    return urlencode(arguments)


def check_support(connection: ProducerConnection) -> None:
    """Raise Unsupported for an nsqd without keys, such as NSQ's own."""
    if not connection.takes_keys:
        raise Unsupported(f"nsqd {connection.address} knows no keys: it does not grant the extension `keys`")


def place_of(connection: ProducerConnection, name: str, config: Config) -> RecallTarget:
    """Return the HTTP address of this connection's nsqd. Raise Unsupported without one.

    HTTP is as well protected as the connection: if that uses TLS, it's HTTPS, and the secret goes only to an nsqd that
    got it with AUTH.
    """
    told = connection.terms.http
    if told is None:
        raise Unsupported(
            f"nsqd {connection.address} does not tell where it serves HTTP: it does not grant the extension `http`"
        )
    if connection.is_secure and not told.https_port:
        raise Unsupported(f"nsqd {connection.address} serves no HTTPS, and the connection to it uses TLS")
    is_secure = connection.is_secure or not told.port
    port = told.https_port if is_secure else told.port
    if not port:
        raise Unsupported(f"nsqd {connection.address} serves no HTTP")
    headers = [ACCEPT]
    if config.auth_secret and connection.terms.auth_required:
        headers.append(("Authorization", f"Bearer {config.auth_secret}"))
    return RecallTarget(connection.peer or name, name, port, is_secure, told.node, headers)


def read_counts(status: int, body: bytes, kind: type[ResultT]) -> Counts:
    """Return an nsqd's result. Raise Unsupported or ConnectError if the answer isn't one."""
    said = _document(body)
    if status == _OK:
        try:
            return {it.name: int(said[it.name]) for it in fields(kind) if it.name != "failures"}
        except (KeyError, TypeError, ValueError) as error:
            raise ConnectError(f"malformed answer: {error!r}") from error
    code, reason = said.get("message", ""), said.get("reason", "")
    if status == _NOT_FOUND:
        if code in _NOT_THERE:
            return {}
        raise Unsupported("this nsqd cannot take messages back")
    if code == _WRONG_NODE:
        raise ConnectError("another nsqd answers at its HTTP port: see --broadcast-http-port of nsqd")
    raise ConnectError(f"got response {status} {code}{f': {reason}' if reason else ''}".rstrip())


def _document(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def summed(kind: type[ResultT], answers: Iterable[tuple[str, Counts | NSQError]]) -> ResultT:
    """Return the sum of the answers. Raise Incomplete with the sum if one is missing.

    If no nsqd supports it, raise Unsupported.
    """
    counts: dict[str, int] = {}
    errors: dict[str, NSQError] = {}
    answered = 0
    for address, answer in answers:
        if isinstance(answer, NSQError):
            errors[address] = answer
            continue
        answered += 1
        for name, number in answer.items():
            counts[name] = counts.get(name, 0) + number
    if errors and not answered and all(isinstance(error, Unsupported) for error in errors.values()):
        raise next(iter(errors.values()))
    failures = tuple(NodeFailure(address, str(error)) for address, error in errors.items())
    result = kind(**counts, failures=failures)
    if failures:
        raise Incomplete(result)
    return result
