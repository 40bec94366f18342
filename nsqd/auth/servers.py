"""Asks the authorization servers about clients: many clients at once, but one server at a time for each client.

When many clients connect, at most AT_ONCE questions are in progress. The others are queued, with their clients
suspended. We skip a question if its client has gone.
"""

from __future__ import annotations

import logging
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import trio

from nsqcommon import http_client
from nsqcommon.certificate_files import CertificateFiles, RenewedContext
from nsqcommon.net import join_host_port
from nsqcommon.options import SECOND
from nsqcommon.passwords import without_credentials
from nsqcommon.turn import Turn, in_turn
from nsqcommon.wakeup import Wakeup
from nsqd.auth.grants import AuthQuestion, Grant, GrantError, decode_grant_stepwise
from nsqd.tls import client_files

if TYPE_CHECKING:
    from nsqcommon.wire.http_exchange import Answer
    from nsqd.options import Options

log = logging.getLogger(__name__)

AT_ONCE: Final = 64  # parallel questions; each needs a file descriptor
MOST_ANSWERED: Final = 512 << 10  # bytes in an answer
_LARGE_AT_ONCE: Final = 8  # answers above http_client.SMALL bytes; others wait, within their request's timeout
_SLICE: Final = 0.001  # seconds of decoding before other tasks run
_ACCEPT: Final = ("Accept", "application/vnd.nsq; version=1.0")
_JSON: Final = ("Content-Type", "application/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """The servers' addresses, and how to query them."""

    addresses: Sequence[str]
    posts: bool
    connect_timeout: float
    request_timeout: float
    tls: ssl.SSLContext
    files: CertificateFiles[ssl.SSLContext] | None = None  # those of `tls`, if they may be renewed


def settings_of(options: Options) -> AuthSettings | None:
    """Return the settings, or None if there are no servers.

    Raises StartupError if the TLS files are invalid, even without servers.
    """
    if not options.auth_http_address and not options.tls_root_ca_file:
        return None
    files = client_files(options)
    if not options.auth_http_address:
        return None
    return AuthSettings(
        addresses=options.auth_http_address,
        posts=options.auth_http_request_method == "post",
        connect_timeout=options.http_client_connect_timeout / SECOND or inf,
        request_timeout=options.http_client_request_timeout / SECOND or inf,
        tls=RenewedContext(files),
        files=files,
    )


class AuthServers:
    def __init__(
        self,
        settings: AuthSettings | None,
        turn: Turn,
        *,
        choose: Callable[[int], int] = random.randrange,
        known: Callable[[AuthQuestion], Grant | None] | None = None,
    ) -> None:
        """`known` consults the rights file. We call it first, and ask the servers only if it returns no grant."""
        self._settings = settings
        self._known = known
        self._turn = turn
        self._choose = choose  # picks the index of the first server to ask, given their number
        self._questions: deque[AuthQuestion] = deque()
        self._asked = Wakeup()
        self._large = trio.Semaphore(_LARGE_AT_ONCE)
        self._decoding = trio.Lock()  # one answer at a time, or slices of several answers would add up to a long block

    def ask(self, question: AuthQuestion) -> None:
        """Queue the question. Its `answer` is called later, in a separate turn."""
        self._questions.append(question)
        self._asked.set()

    async def run(self) -> None:
        """Process the queued questions until cancelled."""
        slots = trio.Semaphore(AT_ONCE)
        async with trio.open_nursery() as nursery:
            while True:
                self._asked.clear()
                while self._questions:
                    await slots.acquire()
                    nursery.start_soon(self._ask_and_answer, self._questions.popleft(), slots)
                await self._asked.wait()

    async def _ask_and_answer(self, question: AuthQuestion, slots: trio.Semaphore) -> None:
        grant = None
        try:
            if question.waits:
                grant = await self._grant_for(question)
        except Exception:  # a bug; it costs only this client, as in common/nsqcommon/poller.py
            log.exception("internal error during AUTH; rejecting client(%s)", question.remote_ip)
        finally:
            slots.release()
        with in_turn(self._turn):
            try:
                if question.waits:
                    question.answer(grant)
            except Exception:  # also a bug
                log.exception("client(%s) - internal error, connection dropped", question.remote_ip)
                question.drop()

    async def _grant_for(self, question: AuthQuestion) -> Grant | None:
        """Return the grant from the rights file, or else from the first server that sends a valid answer.

        Tries each server once, starting with a random one. Returns None if all of them fail.
        """
        if self._known is not None and (grant := self._known(question)) is not None:
            return grant
        if self._settings is None:
            return None
        addresses = self._settings.addresses
        first = self._choose(len(addresses))
        for address in (*addresses[first:], *addresses[:first]):
            try:
                with _LargeSlot(self._large) as slot:
                    body = await _query(_url_of(address), question, self._settings, slot)
                    async with self._decoding:
                        return await _decode_in_slices(body)
            except (http_client.HttpFailed, GrantError) as error:
                log.error("failed to query auth server %s - %s", without_credentials(address), error)
        return None


class _LargeSlot:
    """Limits the memory for large answers until they are decoded.

    A broken server may send the longest allowed answer to all questions at the same time. So an answer needs one of a
    few slots as soon as it exceeds http_client.SMALL.
    """

    def __init__(self, large: trio.Semaphore) -> None:
        self._large = large
        self._is_held = False

    def __enter__(self) -> Self:
        return self

    async def acquire(self) -> None:
        if not self._is_held:
            await self._large.acquire()
            self._is_held = True

    def __exit__(self, *error: object) -> None:
        if self._is_held:
            self._large.release()


async def _decode_in_slices(body: bytes) -> Grant:
    """Decode a grant in slices, and let other tasks run in between. Raises GrantError."""
    decoding = decode_grant_stepwise(body)
    stop = monotonic() + _SLICE
    while True:
        try:
            next(decoding)
        except StopIteration as done:
            grant: Grant = done.value
            return grant
        if monotonic() >= stop:
            await trio.lowlevel.checkpoint()
            stop = monotonic() + _SLICE


async def _query(url: str, question: AuthQuestion, settings: AuthSettings, slot: _LargeSlot) -> bytes:
    answer = await _fetch(url, question, settings, slot)
    # As in NSQ, a 403 with an https_port means that the server requires TLS.
    if answer.status == 403 and not url.startswith("https://") and (port := http_client.https_port_in(answer.body)):
        answer = await _fetch(_at_https_port(url, port), question, settings, slot)
    if answer.status != 200:
        raise http_client.HttpFailed(f"answered with status {answer.status}")
    return answer.body


async def _fetch(url: str, question: AuthQuestion, settings: AuthSettings, slot: _LargeSlot) -> Answer:
    posts = settings.posts
    return await http_client.fetch(
        "POST" if posts else "GET",
        # Always append the `?`, as NSQ does, because existing auth URLs rely on it.
        url if posts else f"{url}?{question.as_query()}",
        tls=settings.tls,
        headers=(_ACCEPT, _JSON) if posts else (_ACCEPT,),
        body=question.as_json() if posts else b"",
        connect_timeout=settings.connect_timeout,
        timeout=settings.request_timeout,
        most=MOST_ANSWERED,
        before_large=slot.acquire,
    )


def _url_of(address: str) -> str:
    return address if "://" in address else f"http://{address}/auth"


def _at_https_port(url: str, port: int) -> str:
    parts = urlsplit(url)  # valid, because we have just fetched it
    return parts._replace(scheme="https", netloc=join_host_port(parts.hostname or "", port)).geturl()
