"""Sends the posts about incidents: one task for each receiver, so that a slow one doesn't hold up the others.

Posts are retried with growing pauses (`outbox.py`). Redirects aren't followed, because a post names topics and nodes, and
the URL that you give may hold a secret: logs, metrics and pages only show its host.
"""

from __future__ import annotations

import logging
import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from random import random
from time import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx
import trio

from nsqadmin.cluster.model import Activity
from nsqadmin.cluster.recording import from_json, to_json
from nsqadmin.parts.links import Links
from nsqadmin.upstream.client import FAILURES, failure_of
from nsqadmin.webhook.ledger import Ledger
from nsqadmin.webhook.outbox import Outbox, Outcome
from nsqadmin.webhook.post import Post, body_of
from nsqcommon.options import seconds
from nsqcommon.wakeup import Wakeup

if TYPE_CHECKING:
    import ssl

    from nsqadmin.diagnosis.incident import IncidentChange
    from nsqadmin.options import Options

log = logging.getLogger(__name__)

_AT_THE_END: Final = 3.0  # seconds for posts that wait when nsqadmin stops
_HEADERS: Final = {"content-type": "application/json", "user-agent": "nsqadmin"}
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """The posts that wait for one receiver."""

    receiver: str
    posts: tuple[Post, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The part that survives a restart."""

    format: int
    told: tuple[Post, ...] = ()
    waiting: tuple[_Waiting, ...] = ()


class _Receiver:
    def __init__(self, url: str, host: str, name: str) -> None:
        self.url = url
        self.host = host
        self.name = name  # for people: without anything secret
        self.digest = blake2b(url.encode(), digest_size=12).hexdigest()  # for the file: without anything secret, too
        self.outbox = Outbox(random)
        self.wake = Wakeup()
        self.has_ended = trio.Event()


class IncidentWebhook:
    def __init__(
        self,
        options: Options,
        tls: ssl.SSLContext,
        note: Callable[[Activity], None],
        *,
        wall: Callable[[], float] = time,
    ) -> None:
        """`tls` begins each connection to a receiver. `note` adds an event to the activity."""
        self._note = note
        self._wall = wall
        self._ledger = Ledger()
        self._is_ending = False
        urls = tuple(dict.fromkeys(options.incident_webhook))
        hosts = [urlsplit(url).netloc.rpartition("@")[2] for url in urls]
        self._receivers = list(map(_Receiver, urls, hosts, _names_of(hosts)))
        self._timeout = seconds(options.http_client_request_timeout)
        self._base = options.external_url.rstrip("/")
        self._links = Links(options.prefix)
        self._via = platform.node()
        self._client = httpx.AsyncClient(
            verify=tls,
            trust_env=False,
            follow_redirects=False,
            headers=_HEADERS,
            timeout=httpx.Timeout(self._timeout, connect=seconds(options.http_client_connect_timeout)),
        )

    @property
    def outboxes(self) -> dict[str, Outbox]:
        """The outbox of each receiver, by a name without secrets."""
        return {receiver.name: receiver.outbox for receiver in self._receivers}

    def observe(self, changes: Iterable[IncidentChange], present: Callable[[], Collection[str]], now: float) -> None:
        """Queue posts about the changes that a snapshot brought.

        `present()` returns the keys of all incidents that aren't over, muted ones, too.
        """
        posts = self._ledger.posts_for(changes, present, now)
        for receiver in self._receivers if posts else ():
            dropped = sum(not receiver.outbox.add(post) for post in posts)
            if dropped:
                log.error("posts about %d incidents dropped for %s: too many are waiting", dropped, receiver.name)
            receiver.wake.set()

    async def run(self) -> None:
        """Send posts until cancelled, or until `finish` has been called."""
        async with self._client, trio.open_nursery() as nursery:
            for receiver in self._receivers:
                nursery.start_soon(self._serve, receiver)

    async def finish(self) -> None:
        """Try the waiting posts once more, for a few seconds in all. What still waits then is in `dump`."""
        self._is_ending = True
        for receiver in self._receivers:
            receiver.wake.set()
        with trio.move_on_after(_AT_THE_END):
            for receiver in self._receivers:
                await receiver.has_ended.wait()

    async def _serve(self, receiver: _Receiver) -> None:
        outbox = receiver.outbox
        while not self._is_ending:
            next_try = outbox.not_before if len(outbox) else inf
            if next_try > trio.current_time():
                with trio.move_on_at(next_try):
                    await receiver.wake.wait()
            else:
                await self._try(receiver)
        while len(outbox) and await self._try(receiver) is not Outcome.RETRY:
            pass
        receiver.has_ended.set()

    async def _try(self, receiver: _Receiver) -> Outcome:
        """Send the oldest post once, and report how that went."""
        outbox, was_failing = receiver.outbox, receiver.outbox.is_failing
        post = outbox.take()
        assert post is not None
        body = body_of(post, url=self._url_of(post), via=self._via)
        try:
            status, retry_after = await self._posted(receiver.url, body)
        except FAILURES as error:
            reason = failure_of(f"http://{receiver.host}/", error)
            outcome = outbox.not_answered(trio.current_time())
        else:
            reason = f"got response {status}"
            outcome = outbox.answered(status, trio.current_time(), retry_after=retry_after)
        if outcome is Outcome.FAILED:
            log.error("post about an incident given up for %s - %s", receiver.name, reason)
        if outbox.is_failing is not was_failing:
            self._report(receiver, reason)
        return outcome

    async def _posted(self, url: str, body: bytes) -> tuple[int, float]:
        """Return the status of the answer, and the seconds that it asks us to wait. We don't read its body."""
        with trio.fail_after(self._timeout):
            async with self._client.stream("POST", url, content=body) as response:
                wait = response.headers.get("retry-after", "")
                return response.status_code, float(wait) if wait.isascii() and wait.isdigit() else 0.0

    def _report(self, receiver: _Receiver, reason: str) -> None:
        """Say, once, that a receiver fails, or that it works again."""
        if receiver.outbox.is_failing:
            log.warning("posts about incidents fail at %s - %s", receiver.name, reason)
            what, text = "incident_webhook_fails", f"posts about incidents fail at {receiver.name}: {reason}"
        else:
            log.info("posts about incidents reach %s again", receiver.name)
            what, text = "incident_webhook_works", f"posts about incidents reach {receiver.name} again"
        self._note(Activity(at=self._wall(), what=what, text=text))

    def _url_of(self, post: Post) -> str:
        return self._base + self._links.incident(post.key) if self._base else ""

    # Over a restart

    def dump(self) -> Any:
        """Return the incidents that receivers know, and the posts that wait, as plain values."""
        waiting = tuple(_Waiting(receiver=it.digest, posts=it.outbox.posts) for it in self._receivers)
        return to_json(_Kept(format=_FORMAT, told=self._ledger.posts, waiting=waiting))

    def load(self, dumped: Any) -> None:
        """Restore the output of `dump`. Raise ValueError for anything else."""
        kept = from_json(_Kept, dumped)
        if kept.format != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {kept.format}")
        self._ledger.restore(kept.told)
        by_digest = {it.receiver: it.posts for it in kept.waiting}
        for receiver in self._receivers:
            for post in by_digest.get(receiver.digest, ()):
                receiver.outbox.add(post)


def _names_of(hosts: Sequence[str]) -> list[str]:
    """Return a name for each receiver: its host, with a number if several have the same one."""
    seen: Counter[str] = Counter()
    names = []
    for host in hosts:
        seen[host] += 1
        names.append(host if seen[host] == 1 else f"{host}#{seen[host]}")
    return names
