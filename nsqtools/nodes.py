"""Queries nsqlookupd and nsqd over HTTP: which nsqd have a topic, and how each is doing."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import trio

from nsqcommon.http_client import HttpFailed, fetch, get, open_answer
from nsqcommon.net import join_host_port
from nsqtools.json_fields import list_in, number_in, text_in

if TYPE_CHECKING:
    from nsqcommon.wire.http_exchange import Answer

# Without this header, versions of NSQ before 1.0 wrap each answer in an envelope.
ACCEPT: Final = ("Accept", "application/vnd.nsq; version=1.0")

_PATIENCE: Final = 30.0  # seconds for the next piece of a list; each body may be a read from disk

Said = TypeVar("Said")


class AskFailed(Exception):
    """A server gave no usable answer. The message has the server and the reason."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status = status  # HTTP status; 0 without an answer
        self.code = code  # NSQ's error code, such as TOPIC_NOT_FOUND


@dataclass(frozen=True, slots=True)
class Server:
    """An HTTP address of nsqd or nsqlookupd."""

    host: str
    port: int
    has_tls: bool = False

    def __str__(self) -> str:
        where = join_host_port(self.host, self.port)
        return f"https://{where}" if self.has_tls else where


def parse_server(text: str) -> Server:
    """Parse `host:port` or a URL; only scheme, host and port count. Raise ValueError."""
    url = urlsplit(text if "://" in text else f"//{text}")
    if not url.hostname:
        raise ValueError(f"no host in address {text!r}")
    has_tls = url.scheme == "https"
    if url.port is None and not url.scheme:
        raise ValueError(f"missing port in address {text!r}")
    return Server(url.hostname, url.port or (443 if has_tls else 80), has_tls)


@dataclass(frozen=True, slots=True, order=True)
class RegisteredNsqd:
    """An nsqd registered with nsqlookupd."""

    broadcast_address: str
    http_port: int
    tcp_port: int = field(compare=False)

    @property
    def server(self) -> Server:
        return Server(self.broadcast_address, self.http_port)

    @property
    def tcp_address(self) -> str:
        return join_host_port(self.broadcast_address, self.tcp_port)


class NodeQueries:
    """Sends queries with these timeouts (seconds). `reasons` translates error codes into words."""

    def __init__(
        self,
        *,
        connect_timeout: float = 2.0,
        request_timeout: float = 5.0,
        token: str = "",
        reasons: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._reasons = reasons
        self.connect_timeout = connect_timeout
        self.request_timeout = request_timeout
        self.headers = (ACCEPT, ("Authorization", f"Bearer {token}")) if token else (ACCEPT,)
        self._tls: ssl.SSLContext | None = None
        self._over_tls: dict[Server, Server] = {}

    @property
    def tls(self) -> ssl.SSLContext:
        if self._tls is None:  # loading the system's certificates takes longer than most queries
            self._tls = ssl.create_default_context()
        return self._tls

    async def ask(self, server: Server, target: str, read: Callable[[Any], Said]) -> Said:
        """Send a GET, and return `read` of the JSON object in the answer. Raise AskFailed.

        A status other than 200 and a KeyError, TypeError or ValueError in `read` are failures too. If the server
        refuses plain HTTP and names its HTTPS port, we use that, for later queries as well.
        """
        answer = await self._get(self.where(server), target)
        if answer.status == 403 and not server.has_tls and (port := _https_port(answer.body)):
            self._over_tls[server] = Server(server.host, port, has_tls=True)
            answer = await self._get(self.where(server), target)
        return self._read(server, target, answer, read)

    async def post(self, server: Server, target: str, read: Callable[[Any], Said]) -> Said:
        """Send a POST, and return `read` of the JSON object in the answer. Raise AskFailed.

        If the server refuses plain HTTP, this doesn't switch to HTTPS: call `ask` on this server before.
        """
        where = self.where(server)
        url = f"{'https' if where.has_tls else 'http'}://{join_host_port(where.host, where.port)}{target}"
        try:
            answer = await fetch(
                "POST",
                url,
                tls=self.tls,
                headers=self.headers,
                connect_timeout=self.connect_timeout,
                timeout=self.request_timeout,
            )
        except HttpFailed as error:
            raise AskFailed(f"{server}{target}: {error}") from error
        return self._read(server, target, answer, read)

    async def ask_lines(self, server: Server, target: str, check: Callable[[Any], object]) -> list[Any]:
        """Return the JSON documents in the lines of an answer. Raise AskFailed. Call `ask` on this server before.

        `check` is called with each, and its KeyError, TypeError or ValueError is a failure.
        """
        where, pieces = self.where(server), []
        try:
            async with open_answer(
                where.host,
                where.port,
                target,
                tls=self.tls if where.has_tls else None,
                headers=self.headers,
                connect_timeout=self.connect_timeout,
                patience=_PATIENCE,
            ) as answer:
                while piece := await answer.next_piece():
                    pieces.append(piece)
                said = b"".join(pieces)
                if answer.status != 200:
                    raise self._refusal(server, target, answer.status, said)
        except HttpFailed as error:
            raise AskFailed(f"{server}{target}: {error}") from error
        try:
            lines = [json.loads(line) for line in said.splitlines()]
            for line in lines:
                check(line)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise AskFailed(f"{server}{target}: not what nsqd answers: {error}") from error
        return lines

    def where(self, server: Server) -> Server:
        """Return the address to use: the HTTPS one if we know that the server needs it."""
        return self._over_tls.get(server, server)

    async def _get(self, server: Server, target: str) -> Answer:
        try:
            return await get(
                server.host,
                server.port,
                target,
                tls=self.tls if server.has_tls else None,
                headers=self.headers,
                connect_timeout=self.connect_timeout,
                timeout=self.request_timeout,
            )
        except HttpFailed as error:
            raise AskFailed(f"{server}{target}: {error}") from error

    def _read(self, server: Server, target: str, answer: Answer, read: Callable[[Any], Said]) -> Said:
        where = f"{server}{target}"
        if answer.status != 200:
            raise self._refusal(server, target, answer.status, answer.body)
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise AskFailed(f"{where}: not JSON: {error}") from error
        if not isinstance(found, dict):
            raise AskFailed(f"{where}: not what NSQ answers: no JSON object")
        try:
            return read(found)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise AskFailed(f"{where}: not what NSQ answers: {reason}") from error

    def _refusal(self, server: Server, target: str, status: int, body: bytes) -> AskFailed:
        error = refusal(f"{server}{target}", status, body)
        reason = self._reasons.get(error.code)
        return AskFailed(f"{server}: {reason}", status=status, code=error.code) if reason else error

    async def ask_all(
        self, servers: Sequence[Server], target: str, read: Callable[[Any], Said]
    ) -> tuple[dict[Server, Said], list[AskFailed]]:
        """Ask all servers in parallel. Return the answers and the failures."""
        answers: dict[Server, Said] = {}
        failures: list[AskFailed] = []

        async def ask_one(server: Server) -> None:
            try:
                answers[server] = await self.ask(server, target, read)
            except AskFailed as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(partial(ask_one, server))
        return {server: answers[server] for server in servers if server in answers}, failures

    async def producers(self, lookupds: Sequence[Server], topic: str) -> tuple[list[RegisteredNsqd], list[AskFailed]]:
        """Return the nsqd that have the topic, from all nsqlookupds. Some of these may not know it."""
        answers, failures = await self.ask_all(lookupds, f"/lookup?topic={quote(topic)}", _producers)
        found = {producer for answer in answers.values() for producer in answer}
        return sorted(found), [failure for failure in failures if failure.status != 404]

    async def nodes(self, lookupds: Sequence[Server]) -> tuple[list[RegisteredNsqd], list[AskFailed]]:
        """Return all registered nsqd that accept messages, from all nsqlookupds.

        Draining, full and unhealthy ones are left out, if there are others.
        """
        answers, failures = await self.ask_all(lookupds, "/nodes", _nodes)
        listed = [it for answer in answers.values() for it in answer]
        unready = {producer for producer, state in listed if state}  # NSQ's own nsqlookupd has no states
        found = {producer for producer, _ in listed}
        return sorted(found - unready) or sorted(found), failures

    async def missing(self, lookupds: Sequence[Server], topic: str) -> tuple[list[Server], list[AskFailed]]:
        """Return the missing nsqd that had the topic, or may have had it. NSQ's nsqlookupd doesn't list any."""
        answers, failures = await self.ask_all(lookupds, "/nodes?missing=true", partial(_missing, topic=topic))
        return list(dict.fromkeys(server for answer in answers.values() for server in answer)), failures


def _missing(answer: Any, topic: str) -> list[Server]:
    return [
        Server(text_in(it, "broadcast_address"), number_in(it, "http_port"))
        for it in list_in(answer, "missing")
        # No list means that it had too many topics for nsqlookupd to remember.
        if it.get("retired") is not True and (it["topics"] is None or topic in list_in(it, "topics"))
    ]


def _producers(answer: Any) -> list[RegisteredNsqd]:
    return [
        RegisteredNsqd(text_in(it, "broadcast_address"), number_in(it, "http_port"), number_in(it, "tcp_port"))
        for it in list_in(answer, "producers")
    ]


def _nodes(answer: Any) -> list[tuple[RegisteredNsqd, str]]:
    states = [str(it.get("state") or "") for it in list_in(answer, "producers")]
    return list(zip(_producers(answer), states, strict=True))


def tcp_port_in(info: Any) -> int:
    """Return the TCP port from an answer of `/info`."""
    return number_in(info, "tcp_port")


def _https_port(body: bytes) -> int:
    try:
        return int(json.loads(body)["https_port"])
    except (ValueError, KeyError, TypeError):
        return 0


def refusal(where: str, status: int, body: bytes) -> AskFailed:
    """Return the failure for an answer with a status other than 200."""
    try:
        code = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        code = ""
    return AskFailed(f"{where}: got response {status} {code}".rstrip(), status=status, code=code)


async def servers_of(
    queries: NodeQueries,
    topic: str,
    *,
    lookupd: Sequence[str] = (),
    nsqd_http: Sequence[str] = (),
    nsqd_tcp: Sequence[str] = (),
) -> list[Server]:
    """Return the HTTP addresses of the nsqd named by the given addresses. Raise AskFailed."""
    if nsqd_http:
        return [parse_server(address) for address in nsqd_http]
    if nsqd_tcp:
        return [await _beside(queries, parse_server(address)) for address in nsqd_tcp]
    producers, failures = await queries.producers([parse_server(address) for address in lookupd], topic)
    if not producers:
        raise failures[0] if failures else AskFailed(f"no nsqd has the topic {topic}", status=404)
    return [producer.server for producer in producers]


async def _beside(queries: NodeQueries, tcp: Server) -> Server:
    """Return the HTTP address for this TCP address, if it is the next port, as usual."""
    http = Server(tcp.host, tcp.port + 1)
    if await queries.ask(http, "/info", tcp_port_in) != tcp.port:
        raise AskFailed(f"{http}/info: this is not the nsqd of {tcp}")
    return http
