"""The HTTP client for nsqd and nsqlookupd. Its errors read like NSQ's.

A single client, on trio, queries all nodes: connections are kept alive, and each request has its own deadline. An nsqd
that only speaks TLS refuses a plain request and names its HTTPS port; we then repeat the request there.

Anyone can register as a node, so we limit answers: their unpacked size, the memory that they would take once parsed,
and the number of large ones held at once. Unpacking and parsing pause every few milliseconds.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from math import inf
from time import thread_time
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import quote_plus

import httpx
import trio

from nsqadmin.upstream import sliced_json
from nsqadmin.upstream.acting import user_header
from nsqadmin.upstream.token import Token, Way
from nsqadmin.upstream.unpacking import Body, TooLarge
from nsqcommon.certificate_files import CertificateFiles, RenewedContext, load_chain, reason_of
from nsqcommon.http_api import phrase
from nsqcommon.options import seconds
from nsqcommon.recipients import host_and_port
from nsqcommon.startup import StartupError
from nsqcommon.wire.quoting import quote

if TYPE_CHECKING:
    from nsqadmin.options import Options
    from nsqadmin.upstream.slices import Slices

_HEADERS: Final = {
    "accept": "application/vnd.nsq; version=1.0",
    "accept-encoding": "gzip",
    "user-agent": "nsqadmin",
}
_INDEX: Final = "x-nsq-index"
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_OK: Final = 200
_REFUSED: Final = frozenset((401, _FORBIDDEN))
_TO_GET: Final = frozenset((301, 302, 303))
_REDIRECTS: Final = _TO_GET | {307, 308}
_MOST_REDIRECTS: Final = 10  # as in Go
_MOST_OF_A_REFUSAL: Final = 64 * 1024  # bytes
_LARGE: Final = 1 << 20  # bytes; a longer answer waits for one of `_MOST_LARGE` slots
_MOST_LARGE: Final = 2  # large answers held at once, until they are parsed
_OF_LOOKUPD: Final = 4  # an nsqlookupd's answer may be this many times as large as a node's
_MOST_SECURE: Final = 10_000  # nodes whose HTTPS port we remember
_REDIRECTED: Final = "it has redirected the request to another address"
# Errors of a request with reasons outside of this program.
_NO_HTTP_LINE: Final = re.compile("illegal (?:status|request) line").match  # h11's words
_NOT_HTTP: Final = "malformed HTTP response"
FAILURES: Final = (httpx.HTTPError, httpx.InvalidURL, trio.TooSlowError, OSError, ValueError)
_SLICE: Final = 0.002  # seconds of processor time after which other tasks run

T = TypeVar("T")


class UpstreamError(Exception):
    """A failed request: no answer, a refusal, or an answer that we couldn't use.

    The message is NSQ's. `status` is 0 if no answer came. `withheld` says why the request had no token; `not_read` says
    why we didn't read an answer that came.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        body: bytes = b"",
        timed_out: bool = False,
        withheld: str = "",
        not_read: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.timed_out = timed_out
        self.withheld = withheld
        self.not_read = not_read


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: Body
    date: str
    reason: str
    location: str
    withheld: str
    index: str


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON answer."""

    value: Any
    size: int  # bytes of its text
    weight: int  # estimated bytes of memory of the parsed value
    made_at: float | None  # by the node's clock
    withheld: str  # why the request had no token; empty if it had one, or there is none
    index: str = ""  # of nsqlookupd; a query can wait for it to change


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer that is still arriving."""

    status: int
    pieces: AsyncIterator[bytes]


class Upstream:
    def __init__(self, options: Options) -> None:
        self.spent = 0.0  # seconds of processor time for unpacking and parsing answers
        self._timeout = seconds(options.http_client_request_timeout)
        self._connect_timeout = seconds(options.http_client_connect_timeout)
        self._most = options.max_answer_size
        self._token = Token(options)
        self._https_ports: dict[str, int] = {}  # of the nodes that only speak TLS, by address
        self._large = trio.CapacityLimiter(_MOST_LARGE)
        self._turn = trio.Lock()  # held for one slice of `in_slices`
        self.files = client_files(options)
        self._client = httpx.AsyncClient(
            verify=RenewedContext(self.files),
            trust_env=False,
            follow_redirects=False,
            headers=_HEADERS,
            timeout=httpx.Timeout(self._timeout, connect=self._connect_timeout),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=90),
        )

    async def get(self, address: str, target: str) -> bytes:
        """Return the body of an nsqd's answer. Raise UpstreamError unless its status is 200."""
        return await self._ask("GET", address, target, b"", is_lookupd=False)

    async def get_json(self, address: str, target: str, *, is_lookupd: bool = False) -> Any:
        return (await self.get_document(address, target, is_lookupd=is_lookupd)).value

    async def get_document(self, address: str, target: str, *, is_lookupd: bool = False) -> Document:
        async with self._place(is_lookupd=is_lookupd) as place:
            answer = await self._get_answer("GET", address, target, b"", place, is_lookupd=is_lookupd)
            value = await self._read(address, answer.body)
        body = answer.body
        return Document(value, len(body.data), body.weight, _date_of(answer.date), answer.withheld, answer.index)

    async def post(self, address: str, target: str, body: bytes = b"", *, is_lookupd: bool = False) -> bytes:
        return await self._ask("POST", address, target, body, is_lookupd=is_lookupd)

    @asynccontextmanager
    async def stream(
        self, address: str, target: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Streamed]:
        """Send a GET whose answer is read piece by piece. Only the start of the answer has a deadline."""
        url = self._url(address, target)
        try:
            with trio.fail_after(self._timeout):
                way = await self._way_to(url, address, is_lookupd=False)
                response = await self._client.send(self._request("GET", way, b"", headers), stream=True)
        except FAILURES as error:
            raise _failure_of("GET", url, error) from error
        try:
            async with aclosing(self._pieces_of(response)) as pieces:
                yield Streamed(response.status_code, pieces)
        except (httpx.HTTPError, ValueError, TooLarge) as error:
            raise _failure_of("GET", url, error) from error
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await response.aclose()

    async def next_index(self, address: str, target: str, *, index: str, wait: float) -> str:
        """Wait until nsqlookupd's index for this target changes, or for `wait` seconds. Return the index then.

        The body of the answer isn't read. Empty: the answer has no index.
        """
        url = f"{self._url(address, target)}?wait={wait:g}s&index={quote_plus(index)}"
        limit = self._timeout + wait
        with _as_upstream_error("GET", url), trio.fail_after(limit):
            way = await self._way_to(url, address, is_lookupd=True)
            request = self._request("GET", way, b"")
            request.extensions["timeout"] = httpx.Timeout(limit, connect=self._connect_timeout).as_dict()
            response = await self._client.send(request, stream=True)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await response.aclose()
        return str(response.headers.get(_INDEX, ""))

    async def in_slices(self, work: Slices[T]) -> T:
        """Do the work, and let other tasks run at its pauses. Its processor time is added to `spent`.

        Only one slice of all such work runs per turn of the event loop, so turns stay short however many answers come.
        """
        while True:
            async with self._turn:
                began = now = thread_time()
                try:
                    while now - began < _SLICE:
                        next(work)
                        now = thread_time()
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    self.spent += thread_time() - began

    async def aclose(self) -> None:
        await self._client.aclose()

    # One request

    async def _ask(self, method: str, address: str, target: str, body: bytes, *, is_lookupd: bool) -> bytes:
        async with self._place(is_lookupd=is_lookupd) as place:
            answer = await self._get_answer(method, address, target, body, place, is_lookupd=is_lookupd)
            return bytes(answer.body.data)

    def _place(self, *, is_lookupd: bool) -> _Place:
        # nsqlookupd lists all nodes in one answer: a node that registers a lot must not hide the others.
        return _Place(self._large, most=self._most * (_OF_LOOKUPD if is_lookupd else 1))

    async def _get_answer(
        self, method: str, address: str, target: str, body: bytes, place: _Place, *, is_lookupd: bool
    ) -> _Answer:
        ask = partial(self._ask_and_follow, method, address, body, place, is_lookupd=is_lookupd)
        url = self._url(address, target)
        try:
            answer = await ask(url)
        except UpstreamError:
            self._https_ports.pop(address, None)  # it may speak plain HTTP now
            raise
        if answer.status == _FORBIDDEN and url.startswith("http:"):
            self._remember_https(address, answer)
            answer = await ask(self._url(address, target))
        if answer.status != _OK:
            raise _refusal_of(answer)
        return answer

    async def _ask_and_follow(
        self, method: str, address: str, body: bytes, place: _Place, url: str, *, is_lookupd: bool
    ) -> _Answer:
        """Send the request, and follow all redirects. Only the first address gets the token."""
        with _as_upstream_error(method, url), trio.fail_after(self._timeout):  # resolving a name may be needed
            way = await self._way_to(url, address, is_lookupd=is_lookupd)
        withheld, elsewhere = way.withheld, _REDIRECTED if way.headers else way.withheld
        if method == "POST":
            way = replace(way, headers={**way.headers, **user_header()})
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await self._exchange(method, url, way, body, place)
            if answer.status not in _REDIRECTS or not answer.location:
                return replace(answer, withheld=withheld)
            if answer.status in _TO_GET:
                method, body = "GET", b""
            with _as_upstream_error(method, url):
                way = Way(httpx.URL(url).join(answer.location))
            url, withheld = str(way.url), elsewhere
        raise UpstreamError(f'{method.capitalize()} "{url}": stopped after {_MOST_REDIRECTS} redirects')

    async def _way_to(self, url: str, address: str, *, is_lookupd: bool) -> Way:
        whole = httpx.URL(url)
        host, port = host_and_port(address)
        if whole.userinfo or not whole.host or whole.host.lower() != host.lower():
            raise ValueError(f"{address} is no address")
        return Way(whole) if is_lookupd else await self._token.way_to(whole, (host, port))

    async def _exchange(self, method: str, url: str, way: Way, body: bytes, place: _Place) -> _Answer:
        """Send a request to one address.

        We collect the body ourselves: httpx's responses are reference cycles, which would hold megabytes for a long
        time.
        """
        try:
            with trio.fail_after(self._timeout) as scope:
                response = await self._client.send(self._request(method, way, body), stream=True)
                try:
                    headers = response.headers
                    content = await self._body_of(response, place, scope)
                    return _Answer(
                        response.status_code,
                        content,
                        headers.get("date", ""),
                        response.reason_phrase,
                        headers.get("location", ""),
                        way.withheld,
                        headers.get(_INDEX, ""),
                    )
                finally:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                        await response.aclose()
        except TooLarge as error:
            reason = f"its answer {error}"
            raise UpstreamError(
                f'{method.capitalize()} "{url}": {reason}', withheld=way.withheld, not_read=reason
            ) from error
        except FAILURES as error:
            raise _failure_of(method, url, error, withheld=way.withheld) from error

    def _request(self, method: str, way: Way, body: bytes, headers: Mapping[str, str] | None = None) -> httpx.Request:
        extensions = {"sni_hostname": way.sni_hostname} if way.sni_hostname else {}
        return self._client.build_request(
            method, way.url, content=body or None, headers={**way.headers, **(headers or {})}, extensions=extensions
        )

    # URLs

    def _url(self, address: str, target: str) -> str:
        port = self._https_ports.get(address)
        if port is None:
            return f"http://{address}{target}"
        return f"https://{address.rpartition(':')[0]}:{port}{target}"

    def _remember_https(self, address: str, answer: _Answer) -> None:
        """Remember the HTTPS port named by an nsqd that only speaks TLS. Raise UpstreamError if it names none."""
        try:
            port = int(json.loads(answer.body.data)["https_port"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise _refusal_of(answer) from error
        if not 0 < port < 1 << 16:
            raise _refusal_of(answer)
        if len(self._https_ports) >= _MOST_SECURE:
            self._https_ports.clear()
        self._https_ports[address] = port

    # Answers

    async def _body_of(self, response: httpx.Response, place: _Place, scope: trio.CancelScope) -> Body:
        most = place.most if response.status_code == _OK else _MOST_OF_A_REFUSAL
        body = Body(response.headers.get("content-encoding", ""), most=most)
        async for received in response.aiter_raw():
            await self.in_slices(body.receive(received))
            if len(body.data) > _LARGE and not place.is_taken:
                await place.take(scope)
        return body

    async def _pieces_of(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yield the unpacked body in pieces small enough that other tasks don't wait long."""
        body = Body(response.headers.get("content-encoding", ""), most=self._most)
        async for received in response.aiter_raw():
            for _ in body.receive(received):
                await trio.lowlevel.checkpoint()
                yield body.take()

    async def _read(self, address: str, body: Body) -> Any:
        """Parse the body. The result can be written as JSON again: its text is valid, and its numbers are finite."""
        try:
            return await self.in_slices(sliced_json.loads(body.data))
        except ValueError as error:
            raise UpstreamError(f"{address}: its answer is not JSON: {error}") from error


class _Place:
    """A slot for a large answer: taken when the answer turns out to be large, returned after parsing."""

    def __init__(self, limiter: trio.CapacityLimiter, *, most: int) -> None:
        self.most = most  # bytes of the answer
        self.is_taken = False
        self._limiter = limiter

    async def take(self, scope: trio.CancelScope) -> None:
        """Wait for a slot, and move the deadline by that time, because it isn't the node's fault."""
        left = scope.deadline - trio.current_time()
        scope.deadline = inf
        await self._limiter.acquire_on_behalf_of(self)
        self.is_taken = True
        scope.deadline = trio.current_time() + left

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.is_taken:
            self._limiter.release_on_behalf_of(self)


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Upstream]:
    upstream = Upstream(options)
    try:
        yield upstream
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await upstream.aclose()


def _date_of(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError):
        return None


def _refusal_of(answer: _Answer) -> UpstreamError:
    body = bytes(answer.body.data)
    try:
        reason = phrase(answer.status).decode()
    except ValueError:
        reason = answer.reason
    text = f"got response {answer.status} {reason} {quote(body).decode('utf-8', 'replace')}"
    return UpstreamError(text, status=answer.status, body=body, withheld=answer.withheld)


@contextmanager
def _as_upstream_error(method: str, url: str) -> Iterator[None]:
    """Turn failures inside the block into UpstreamError."""
    try:
        yield
    except FAILURES as error:
        raise _failure_of(method, url, error) from error


def _failure_of(method: str, url: str, error: Exception, *, withheld: str = "") -> UpstreamError:
    text = f'{method.capitalize()} "{url}": {failure_of(url, error)}'
    timed_out = isinstance(error, httpx.TimeoutException | trio.TooSlowError)
    return UpstreamError(text, timed_out=timed_out, withheld=withheld)


def failure_of(url: str, error: Exception) -> str:
    """Return the reason of a failed request in NSQ's words, for any of `FAILURES`."""
    address = url.partition("://")[2].partition("/")[0]
    if isinstance(error, httpx.ConnectTimeout):
        return f"dial tcp {address}: i/o timeout"
    if isinstance(error, httpx.TimeoutException | trio.TooSlowError):
        return "net/http: timeout awaiting response headers (Client.Timeout exceeded while awaiting headers)"
    if isinstance(error, httpx.RemoteProtocolError) and _NO_HTTP_LINE(str(error)):
        return f"net/http: HTTP/1.x transport connection broken: {_NOT_HTTP}"
    cause = _innermost(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"tls: {cause.reason or cause}"
    if isinstance(error, httpx.ConnectError) and isinstance(cause, OSError):
        if isinstance(cause, socket.gaierror):
            text = (cause.strerror or str(cause)).lower()
            return f"dial tcp: lookup {address.rpartition(':')[0]}: {text}"
        # trio's text has more than the C library's.
        text = os.strerror(cause.errno).lower() if cause.errno else str(cause)
        return f"dial tcp {address}: connect: {text}"
    return str(error) or type(error).__name__


def _innermost(error: BaseException) -> BaseException:
    """Return the operating system's error below trio, httpcore and httpx."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
            continue
        inner = error.__cause__ or error.__context__
        if inner is None:
            return error
        error = inner


def client_files(options: Options) -> CertificateFiles[ssl.SSLContext]:
    """Load the TLS files for all nodes. Raise StartupError, in NSQ's words, for invalid files."""
    paths = (options.http_client_tls_cert, options.http_client_tls_key, options.http_client_tls_root_ca_file)
    return CertificateFiles("nodes", paths, partial(_client_context, options), certificate=options.http_client_tls_cert)


def _client_context(options: Options) -> ssl.SSLContext:
    cert, key, root = (
        options.http_client_tls_cert,
        options.http_client_tls_key,
        options.http_client_tls_root_ca_file,
    )
    context = ssl.create_default_context() if not root else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if root:
        _trust(context, root)
    if cert:
        try:
            load_chain(context, cert, key)
        except (OSError, ValueError) as error:
            raise StartupError(f"failed to LoadX509KeyPair {cert}, {key} - {reason_of(error)}") from error
    if options.http_client_tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _trust(context: ssl.SSLContext, path: str) -> None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError as error:
        raise StartupError(f"failed to read TLS root CA file {path} - {(error.strerror or '').lower()}") from error
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise StartupError(f"failed to AppendCertsFromPEM {path}") from error


def in_words(error: UpstreamError) -> str:
    """Return an error as a clause about the node, such as "it refused the request (HTTP 403)".

    Its own text is NSQ's, for those who know Go. It also has the whole address, which may name other topics.
    """
    text = str(error)
    if error.not_read:
        return "its answer is too large"
    if error.status:
        return f"it refused the request (HTTP {error.status})"
    if "lookup" in text and "dial tcp" in text:
        return "its name cannot be resolved"
    if "connection refused" in text:
        return "nothing listens at its address"
    if "i/o timeout" in text:
        return "it does not accept connections"
    if error.timed_out:
        return "it accepted the connection but did not answer in time"
    if ": tls: " in text:
        return "TLS failed"
    if _NOT_HTTP in text:
        return "its answer is not HTTP: is this its TCP port?"
    if ": its answer is not JSON: " in text:
        return "its answer cannot be read"
    return "it could not be reached"


def explain(address: str, error: UpstreamError) -> str:
    """Return the likely meaning of an error, and what to try."""
    text = str(error)
    host = address.rpartition(":")[0]
    if "lookup" in text and "dial tcp" in text:
        return (
            f"It announces itself as {address}, but this machine cannot resolve {host}: "
            "start it with a --broadcast-address that can be resolved from here."
        )
    if "connection refused" in text:
        return f"Nothing listens at {address}: it is not running, or its --broadcast-address or port is wrong."
    if "i/o timeout" in text:
        return (
            f"{address} does not accept connections: a firewall blocks it, the machine is gone, or its "
            "--broadcast-address is wrong."
        )
    if error.timed_out:
        return "It accepted the connection but did not answer in time: it hangs or is overloaded."
    if _NOT_HTTP in text:
        return (
            f"It does not speak HTTP: {address} is probably its TCP port. HTTP is usually on port 4151 for nsqd, and on "
            "4161 for nsqlookupd."
        )
    if ": tls: " in text:
        return "TLS failed: check --http-client-tls-root-ca-file and the node's certificate."
    if error.not_read:
        return (
            "nsqadmin stopped reading the answer, because it could take all memory. If this node really has that much, "
            "raise --max-answer-size or --max-cluster-size; if you don't know it, find out what registers it with "
            "nsqlookupd."
        )
    if error.status in _REFUSED and error.withheld:
        return f"It requires a token, and nsqadmin does not send it the token: {error.withheld}."
    if error.status == _NOT_FOUND:
        return "It doesn't have the topic or channel (HTTP 404), or doesn't know this request."
    if error.status:
        return f"It refused the request (HTTP {error.status}): it may require a token or a certificate."
    return "It could not be reached."
