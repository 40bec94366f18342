"""Asks nsqd and nsqlookupd over HTTP, in Spark's Python workers and in threads of the driver: with TLS and the token."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from nsqcommon.blocking_http import FAILURES, HTTPConnection, HTTPResponse, connection_to
from nsqcommon.recipients import Recipients, is_loopback
from pyspark_nsq.errors import BadOption, NsqError, Refused, Unreachable
from pyspark_nsq.options import Access, split_address

log = logging.getLogger(__name__)

_MOST_OF_AN_ERROR: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Asking:
    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_lookupd: bool = False


class Http:
    """Sends requests to addresses that are `host:port` or URLs.

    An nsqd that wants TLS refuses plain HTTP and names its HTTPS port; requests to it then go to that port.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._context: ssl.SSLContext | None = None
        self._secure: dict[str, str] = {}  # the HTTPS URL of each address that has refused plain HTTP
        self._withheld: set[str] = set()  # nsqd of which the log says that they are asked without the token
        self._kept: dict[str, HTTPConnection] = {}  # for the next `post` to each address

    def __getstate__(self) -> Access:
        return self._access  # neither connections nor keys travel

    def __setstate__(self, access: Access) -> None:
        # Spark pickles readers and writers. The copy starts afresh, as __getstate__ hands over nothing but `access`.
        self.__init__(access)  # type: ignore[misc]

    def actual_address(self, address: str) -> str:
        """Return the HTTPS URL that requests for this address go to, if one is known; otherwise the address itself."""
        return self._secure.get(address, address)

    def json(self, address: str, target: str, *, timeout: float | None = None, is_lookupd: bool = False) -> Any:
        """Return the JSON document of a GET. Raises Unreachable, Refused, and NsqError if the answer is not JSON."""
        with self.request("GET", address, target, timeout=timeout, is_lookupd=is_lookupd) as response:
            body = response.read()
        try:
            return json.loads(body)
        except ValueError:
            raise NsqError(
                f"{address}{target} answers something that is not JSON: is this nsqd or nsqlookupd?"
            ) from None

    @contextmanager
    def request(
        self,
        method: str,
        address: str,
        target: str,
        *,
        accept: str = "application/json",
        timeout: float | None = None,
        is_lookupd: bool = False,
        body: bytes | None = None,
    ) -> Iterator[HTTPResponse]:
        """Yield an answer with status 200, on a connection of its own.

        Raises Refused for any other status. Errors of the connection, inside the block as well, are raised as
        Unreachable.
        """
        ask = _Asking(method, target, body, {"Accept": accept}, is_lookupd=is_lookupd)
        with _translated(address):
            connection, response = self._open(address, self._connect(address, timeout), ask, timeout)
            try:
                yield response
            finally:
                connection.close()

    def post(self, address: str, target: str, body: bytes) -> None:
        """Post a body to an nsqd, on a connection that is kept for the next one. Raises as `request` does."""
        with _translated(address):
            connection = self._kept.pop(address, None) or self._connect(address)
            connection, response = self._open(address, connection, _Asking("POST", target, body))
            try:
                response.read()
            except BaseException:
                connection.close()
                raise
            self._kept[address] = connection

    def close(self) -> None:
        """Close the connections that are kept."""
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()

    def _open(
        self, address: str, connection: HTTPConnection, ask: _Asking, timeout: float | None = None
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Ask, over HTTPS if nsqd says so, and return the connection with its answer, which has status 200."""
        for _ in range(2):
            try:
                token = {} if ask.is_lookupd else self._token_for(connection)
                connection.request(ask.method, ask.target, ask.body, headers={**ask.headers, **token})
                response = connection.getresponse()
                if response.status == 200:
                    return connection, response
                refused = _refusal(address, response)
                if not self._learn_secure(address, refused):
                    raise refused
            except BaseException:
                connection.close()
                raise
            connection.close()
            connection = self._connect(address, timeout)
        raise refused

    def _token_for(self, connection: HTTPConnection) -> dict[str, str]:
        """Return the header with the token if this nsqd may see it. Connects first, to learn the peer's address.

        Anybody can register with nsqlookupd, so an nsqd that it lists is shown the token only if `tokenTo` names it.
        Over plain HTTP the token is sent on loopback only, unless `tokenOverHttp` allows more.
        """
        access = self._access
        if not access.token:
            return {}
        if connection.sock is None:
            connection.connect()
        peer = str(connection.sock.getpeername()[0])
        listed = Recipients(access.token_to)
        is_private = isinstance(connection.sock, ssl.SSLSocket) or access.token_over_http or is_loopback(peer)
        is_meant = access.are_named or any(
            (listed.has_name(connection.host, connection.port), listed.has_address(peer, connection.port))
        )
        if is_meant and is_private:
            return {"Authorization": f"Bearer {access.token}"}
        place = f"{connection.host}:{connection.port}"
        if place not in self._withheld:
            self._withheld.add(place)
            why = (
                "its connection is plain HTTP (tokenOverHttp=true allows that)"
                if is_meant
                else "tokenTo does not name it"
            )
            log.warning("nsqd %s is asked without the token: %s", place, why)
        return {}

    def _connect(self, address: str, timeout: float | None = None) -> HTTPConnection:
        """Make a connection. It connects with its first request."""
        scheme, host, port = split_address(self.actual_address(address))
        patience = timeout if timeout is not None else self._access.timeout
        context = self._tls() if scheme == "https" else None
        return connection_to(scheme, host, port, timeout=patience, context=context)

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            access = self._access
            try:
                context = ssl.create_default_context(cafile=access.ca_file or None)
                if access.cert_file:
                    context.load_cert_chain(access.cert_file, access.key_file or None)
            except OSError as error:
                raise BadOption(f"caFile, certFile or keyFile cannot be read: {error}") from error
            self._context = context
        return self._context

    def _learn_secure(self, address: str, refused: Refused) -> bool:
        """Return whether the refusal names an HTTPS port that was not known yet; if so, use that port from now on."""
        port = refused.details.get("https_port")
        if refused.status != 403 or not isinstance(port, int) or address in self._secure:
            return False
        host = split_address(address)[1]
        self._secure[address] = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        return True


def _refusal(address: str, response: HTTPResponse) -> Refused:
    """Make the error from an answer whose status is not 200."""
    body = response.read(_MOST_OF_AN_ERROR)
    try:
        details = json.loads(body)
    except ValueError:
        details = {}
    if not isinstance(details, dict):
        details = {}
    return Refused(address, response.status, str(details.get("message", response.reason)), details)


@contextmanager
def _translated(address: str) -> Iterator[None]:
    """Translate errors of the operating system and of HTTP into Unreachable."""
    try:
        yield
    except FAILURES as error:
        raise Unreachable(f"{address} cannot be reached: {str(error) or type(error).__name__}", address) from error
