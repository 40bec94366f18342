"""HTTP requests to nsqd and nsqlookupd, from Spark's Python workers and driver threads: with TLS and the token."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsqcommon.blocking_http import BlockingHttp
from nsqcommon.recipients import Recipients, is_loopback
from pyspark_nsq.errors import BadOption, NsqError, Refused, Unreachable
from pyspark_nsq.options import Access, split_address

if TYPE_CHECKING:
    from http.client import HTTPResponse

log = logging.getLogger(__name__)

_MOST_OF_AN_ERROR: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Asking:
    method: str
    address: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    timeout: float | None = None
    is_lookupd: bool = False


class Http:
    """Sends requests to addresses that are `host:port` or URLs.

    An nsqd that wants TLS refuses plain HTTP and names its HTTPS port; requests to it then go to that port.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._context: ssl.SSLContext | None = None
        self._secure: dict[str, str] = {}  # the HTTPS URL of each address that has refused plain HTTP
        self._withheld: set[str] = set()  # nsqds for which we have logged that they don't get the token
        self._kept: dict[str, BlockingHttp] = {}  # for the next `post` to each address

    def __getstate__(self) -> Access:
        return self._access  # neither connections nor keys travel

    def __setstate__(self, access: Access) -> None:
        # Spark pickles readers and writers. The copy starts from scratch, because __getstate__ only passes on `access`.
        self.__init__(access)  # type: ignore[misc]

    def actual_address(self, address: str) -> str:
        """Return the HTTPS URL for this address, if known; otherwise the address itself."""
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
        """Yield an answer with status 200, on a new connection.

        Raises Refused for any other status. Errors of the connection, also inside the block, are raised as Unreachable.
        """
        ask = _Asking(method, address, target, (("Accept", accept),), body, timeout, is_lookupd)
        place = self.actual_address(address)
        with (
            _translated(address),
            self._connect(place, timeout) as http,
            self._response_to(ask, place, http) as response,
        ):
            yield response

    def post(self, address: str, target: str, body: bytes) -> None:
        """Post a body to an nsqd, on a connection that is kept for the next post. Raises like `request`."""
        place = self.actual_address(address)
        if place not in self._kept:
            self._kept[place] = self._connect(place)
        try:
            ask = _Asking("POST", address, target, body=body)
            with _translated(address), self._response_to(ask, place, self._kept[place]) as response:
                response.read()
        except BaseException:
            self._kept.pop(place).close()
            raise

    def close(self) -> None:
        """Close the kept connections."""
        for http in self._kept.values():
            http.close()
        self._kept.clear()

    @contextmanager
    def _response_to(self, ask: _Asking, place: str, http: BlockingHttp) -> Iterator[HTTPResponse]:
        """Yield a response with status 200 from this address, or from the HTTPS port that it names.

        Raises Refused and OSError.
        """
        headers = ask.headers if ask.is_lookupd else (*ask.headers, *self._token_for(place, http))
        with http.response_to(ask.method, ask.target, headers=headers, body=ask.body) as response:
            if response.status == 200:
                yield response
                return
            refused = _refusal(ask.address, response)
        if not self._learn_secure(ask.address, refused):
            raise refused
        place = self.actual_address(ask.address)
        with self._connect(place, ask.timeout) as secure, self._response_to(ask, place, secure) as response:
            yield response

    def _token_for(self, place: str, http: BlockingHttp) -> list[tuple[str, str]]:
        """Return the header with the token if this nsqd may see it. Connects first, to learn the peer's address.

        Anyone can register with nsqlookupd, so a listed nsqd only gets the token if `tokenTo` names it. Over plain HTTP
        we only send the token on loopback, unless `tokenOverHttp` allows more.
        """
        access = self._access
        if not access.token:
            return []
        scheme, host, port = split_address(place)
        listed = Recipients(access.token_to)
        is_private = scheme == "https" or access.token_over_http or is_loopback(http.peer)
        is_meant = access.are_named or listed.has_name(host, port) or listed.has_address(http.peer, port)
        if is_meant and is_private:
            return [("Authorization", f"Bearer {access.token}")]
        shown = f"{host}:{port}"
        if shown not in self._withheld:
            self._withheld.add(shown)
            why = (
                "its connection is plain HTTP (tokenOverHttp=true allows that)"
                if is_meant
                else "tokenTo does not name it"
            )
            log.warning("nsqd %s is asked without the token: %s", shown, why)
        return []

    def _connect(self, place: str, timeout: float | None = None) -> BlockingHttp:
        """Make a connection. It connects with its first request."""
        scheme, host, port = split_address(place)
        patience = timeout if timeout is not None else self._access.timeout
        return BlockingHttp(host, port, timeout=patience, tls=self._tls() if scheme == "https" else None)

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
        """Return True if the refusal names a new HTTPS port; if so, use that port from now on."""
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
    """Translate errors of a connection into Unreachable."""
    try:
        yield
    except OSError as error:
        raise Unreachable(f"{address} cannot be reached: {str(error) or type(error).__name__}", address) from error
