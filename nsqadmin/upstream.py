"""Questions to nsqd and nsqlookupd over HTTP, with the errors spelled as NSQ's client spells them.

One client for all of them, on trio: connections are kept, each question has its own deadline, and an nsqd that speaks
TLS only is asked again where it says that it does.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import httpx
import trio

from common.options import seconds
from common.startup import StartupError
from common.wire.quoting import quote
from nsqadmin import strict_json

if TYPE_CHECKING:
    from nsqadmin.options import Options

_HEADERS: Final = {"accept": "application/vnd.nsq; version=1.0", "user-agent": "nsqadmin"}
_FORBIDDEN: Final = 403
_OK: Final = 200
_MOST: Final = 256 << 20  # bytes of an answer: far more than all of a big node's clients
_half_a_pair: Final = re.compile(r"\\u[dD][89a-fA-F]").search


class UpstreamError(Exception):
    """There is no answer, or it is a refusal. The message is NSQ's; `status` is 0 where there was none."""

    def __init__(self, message: str, *, status: int = 0, body: bytes = b"", timed_out: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.timed_out = timed_out


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    date: str
    reason: str


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer that is still coming."""

    status: int
    pieces: AsyncIterator[bytes]


class Upstream:
    def __init__(self, options: Options) -> None:
        self._timeout = seconds(options.http_client_request_timeout)
        self._connect_timeout = seconds(options.http_client_connect_timeout)
        self._client = httpx.AsyncClient(
            verify=client_context(options),
            trust_env=False,
            follow_redirects=True,
            headers={**_HEADERS, **_token(options)},
            timeout=httpx.Timeout(self._timeout, connect=self._connect_timeout),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=90),
        )

    async def get(self, address: str, target: str) -> bytes:
        """The body of an answer that is 200. Raises UpstreamError."""
        return await self._ask("GET", address, target, b"")

    async def get_json(self, address: str, target: str) -> Any:
        return _json(address, await self.get(address, target))

    async def get_dated_json(self, address: str, target: str) -> tuple[Any, float | None]:
        """The document, and when it was made by the other one's clock, where that says so."""
        answer = await self._answered("GET", address, target, b"")
        return _json(address, answer.body), _date_of(answer.date)

    async def post(self, address: str, target: str, body: bytes = b"") -> bytes:
        return await self._ask("POST", address, target, body)

    @asynccontextmanager
    async def stream(
        self, address: str, target: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Streamed]:
        """A GET whose body is read piece by piece; only its beginning has a deadline."""
        url = f"http://{address}{target}"
        request = self._client.build_request("GET", url, headers=dict(headers or {}))
        try:
            with trio.fail_after(self._timeout):
                response = await self._client.send(request, stream=True)
        except (httpx.HTTPError, trio.TooSlowError, OSError) as error:
            raise _failed("GET", url, error) from error
        try:
            yield Streamed(response.status_code, response.aiter_bytes())
        except httpx.HTTPError as error:
            raise _failed("GET", url, error) from error
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await response.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _ask(self, method: str, address: str, target: str, body: bytes) -> bytes:
        return (await self._answered(method, address, target, body)).body

    async def _answered(self, method: str, address: str, target: str, body: bytes) -> _Answer:
        url = f"http://{address}{target}"
        answer = await self._exchange(method, url, body)
        if answer.status == _FORBIDDEN:
            url = _https_url(answer, address, target)
            answer = await self._exchange(method, url, body)
        if answer.status != _OK:
            raise UpstreamError(_refusal(answer), status=answer.status, body=answer.body)
        return answer

    async def _exchange(self, method: str, url: str, body: bytes) -> _Answer:
        """httpx's own answers are in cycles, and would keep megabytes until somebody collects them: the body is ours."""
        try:
            with trio.fail_after(self._timeout):
                async with self._client.stream(method, url, content=body or None) as response:
                    content = await _body_of(response)
                    return _Answer(
                        response.status_code, content, response.headers.get("date", ""), response.reason_phrase
                    )
        except (httpx.HTTPError, httpx.InvalidURL, trio.TooSlowError, OSError, ValueError) as error:
            raise _failed(method, url, error) from error


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Upstream]:
    upstream = Upstream(options)
    try:
        yield upstream
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await upstream.aclose()


async def _body_of(response: httpx.Response) -> bytes:
    """Also of an answer that says how long it is, as it may be packed. Raises ValueError for one that has no end."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        size += len(piece)
        if size > _MOST:
            raise ValueError(f"the answer has more than {_MOST >> 20} MiB")
    return b"".join(pieces)


def _json(address: str, body: bytes) -> Any:
    """What is read can be written again: text is text, and numbers are finite."""
    try:
        text = body.decode("utf-8", "replace")
        document = strict_json.loads(text)
        if _half_a_pair(text):  # an escape that may be half a character
            document = json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise UpstreamError(f"{address} answered with no JSON: {error}") from error
    return document


def _date_of(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError):
        return None


def _refusal(answer: _Answer) -> str:
    try:
        reason = HTTPStatus(answer.status).phrase
    except ValueError:
        reason = answer.reason
    return f"got response {answer.status} {reason} {quote(answer.body).decode('utf-8', 'replace')}"


def _https_url(answer: _Answer, address: str, target: str) -> str:
    """Where an nsqd that speaks TLS only wants to be asked. UpstreamError when it does not say."""
    try:
        port = int(json.loads(answer.body)["https_port"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UpstreamError(_refusal(answer), status=_FORBIDDEN, body=answer.body) from error
    return f"https://{address.rpartition(':')[0]}:{port}{target}"


def _failed(method: str, url: str, error: Exception) -> UpstreamError:
    verb = method.capitalize()
    timed_out = isinstance(error, httpx.TimeoutException | trio.TooSlowError)
    return UpstreamError(f'{verb} "{url}": {_reason(url, error)}', timed_out=timed_out)


def _reason(url: str, error: Exception) -> str:
    address = url.partition("://")[2].partition("/")[0]
    if isinstance(error, httpx.ConnectTimeout):
        return f"dial tcp {address}: i/o timeout"
    if isinstance(error, httpx.TimeoutException | trio.TooSlowError):
        return "net/http: timeout awaiting response headers (Client.Timeout exceeded while awaiting headers)"
    cause = _innermost(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"tls: {cause.reason or cause}"
    if isinstance(error, httpx.ConnectError) and isinstance(cause, OSError):
        if isinstance(cause, socket.gaierror):
            text = (cause.strerror or str(cause)).lower()
            return f"dial tcp: lookup {address.rpartition(':')[0]}: {text}"
        # trio writes more into the text than the C library does.
        text = os.strerror(cause.errno).lower() if cause.errno else str(cause)
        return f"dial tcp {address}: connect: {text}"
    return str(error) or type(error).__name__


def _innermost(error: BaseException) -> BaseException:
    """httpx wraps what httpcore wraps what trio wraps: one error for all addresses of a name."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
            continue
        inner = error.__cause__ or error.__context__
        if inner is None:
            return error
        error = inner


def _token(options: Options) -> dict[str, str]:
    """Shown to every node: who reads the file may ask them for everything anyway."""
    if not options.nsqd_token_file:
        return {}
    try:
        with open(options.nsqd_token_file, encoding="ascii") as file:
            return {"authorization": f"Bearer {file.read().strip()}"}
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to read --nsqd-token-file ({options.nsqd_token_file}) - {error}") from error


def client_context(options: Options) -> ssl.SSLContext:
    """StartupError, in NSQ's words, for files that cannot be used."""
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
            context.load_cert_chain(cert, key)
        except (OSError, ValueError) as error:
            raise StartupError(f"failed to LoadX509KeyPair {cert}, {key} - {error}") from error
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


def explained(address: str, error: UpstreamError) -> str:
    """What an error most likely means, and what to try."""
    text = str(error)
    host = address.rpartition(":")[0]
    if "lookup" in text and "dial tcp" in text:
        return (
            f"It is announced as {address}, and this machine cannot resolve {host}: "
            "start it with a --broadcast-address that can be resolved from here."
        )
    if "connection refused" in text:
        return f"Nothing listens at {address}: it is not running, or its --broadcast-address or port is another one."
    if "i/o timeout" in text:
        return (
            f"{address} does not take connections: a firewall, a machine that is gone, or a wrong --broadcast-address."
        )
    if error.timed_out:
        return "It took the connection, but did not answer in time: it hangs, or is overloaded."
    if ": tls: " in text:
        return "TLS failed: look at --http-client-tls-root-ca-file and the certificate that it shows."
    if error.status:
        return f"It answered, but refused (HTTP {error.status}): it may want a token or a certificate."
    return "It could not be asked."
