"""nsq_to_http: send an HTTP request for each message of a channel."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ssl import create_default_context
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, urlsplit

from nsqclient import Message, Requeue
from nsqcommon.durations import SECOND, Nanoseconds, seconds
from nsqcommon.http_client import HttpClient, HttpFailed
from nsqcommon.options import DURATION, option
from nsqcommon.startup import StartupError
from nsqcommon.version import NSQ_VERSION
from nsqcommon.wire.groups import without_bad_group
from nsqtools import flags
from nsqtools.bridge import MODE, MODES_AND_ALL, STATUS_EVERY, Targets, consume, pool_for
from nsqtools.client_flags import CLIENT_OPTIONS, CONSUMER_OPT, MAX_IN_FLIGHT, client_config
from nsqtools.command import ToolOptions, run_tool

if TYPE_CHECKING:
    import trio

log = logging.getLogger(__name__)

ABOUT: Final = """\
A POST has the message as its body and succeeds with any status 2xx. In the URL of a GET the message replaces %s, and
only 200 is success (%% is a percent sign). Failed messages are requeued with a delay, and the tool slows down.

A message's headers become headers of the request: traceparent, tracestate, content-type and ce-* under their own names,
others as Nsq-Header-<name>. --header and --content-type override them.

After max_attempts failures (5, see --consumer-opt) a message is buried in its channel.
ATTENTION: an nsqd that cannot bury, such as NSQ's own, drops it, and so does every nsqd in an ephemeral channel."""

_OCTETS: Final = "application/octet-stream"
_IDLE: Final = 90.0  # seconds before an idle connection is closed
_BY_THEIR_OWN_NAMES: Final = frozenset(("traceparent", "tracestate", "content-type"))
_is_field_value: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch
_OURS: Final = frozenset(("host", "content-length", "transfer-encoding", "connection"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    topic: str = option("", "topic to consume")
    channel: str = option("nsq_to_http", "channel to consume")
    max_in_flight: int = option(200, MAX_IN_FLIGHT)
    n: int = option(100, "maximum number of parallel requests")
    mode: str = option("hostpool", f"{MODE}; all: every target", kind=MODES_AND_ALL)
    sample: float = option(1.0, "fraction of the messages to send, 0 to 1; the others are finished at once")
    http_client_connect_timeout: Nanoseconds = option(2 * SECOND, flags.CONNECT_TIMEOUT, kind=DURATION)
    http_client_request_timeout: Nanoseconds = option(20 * SECOND, flags.REQUEST_TIMEOUT, kind=DURATION)
    status_every: int = option(250, STATUS_EVERY)
    content_type: str = option(_OCTETS, "Content-Type of a POST")
    post: tuple[str, ...] = option((), "URL to post to")
    get: tuple[str, ...] = option((), "URL to get, with %s in place of the message")
    header: tuple[str, ...] = option((), "header of each request, 'Name: value'")
    nsqd_tcp_address: tuple[str, ...] = option((), flags.NSQD_TCP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), flags.LOOKUPD_HTTP_ADDRESS)
    consumer_opt: tuple[str, ...] = option((), CONSUMER_OPT, kind=CLIENT_OPTIONS)

    def check(self) -> None:
        self.headers()
        if not self.topic or not self.channel:
            raise StartupError("--topic and --channel are required")
        if self.content_type != _OCTETS:
            if not self.post:
                raise StartupError("--content-type only used with --post")
            if not self.content_type:
                raise StartupError("--content-type requires a value when used")
        flags.check_sources(self.nsqd_tcp_address, self.lookupd_http_address)
        if not self.get and not self.post:
            raise StartupError("--get or --post required")
        if self.get and self.post:
            raise StartupError("use --get or --post not both")
        if not all(url_pattern(url).count(None) == 1 for url in self.get):
            raise StartupError("invalid GET address - must be a printf string")
        if not 0.0 <= self.sample <= 1.0:
            raise StartupError("ERROR: --sample must be between 0.0 and 1.0")
        if self.n <= 0:
            raise StartupError("no handlers")
        flags.check_topic(self.topic)
        flags.check_channel(self.channel)
        flags.check_addresses(self.nsqd_tcp_address, self.lookupd_http_address)
        flags.check_timeouts(self.http_client_connect_timeout, self.http_client_request_timeout)
        for url in (*self.get, *self.post):
            _check_url(url)

    @property
    def must_connect(self) -> bool:
        return bool(self.nsqd_tcp_address)

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of each request. Raise StartupError."""
        headers = {"user-agent": ("User-Agent", f"nsq_to_http v{NSQ_VERSION}")}
        if self.post:
            headers["content-type"] = ("Content-Type", self.content_type)
        for given in self.header:
            name, _, value = (part.strip() for part in given.partition(":"))
            if not name or not value or not (name + value).isprintable() or not name.isascii():
                raise StartupError("--header value format should be 'Name: value'")
            if name.lower() in _OURS:
                raise StartupError(f"--header cannot set {name}")
            headers[name.lower()] = (name, value)
        return list(headers.values())


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url.replace("%s", ""))
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise StartupError(f"invalid address {url!r} - must be a URL with http or https")


def url_pattern(url: str) -> list[str | None]:
    """Split a URL into pieces; None marks the place of the message."""
    return [None if piece == "%s" else "%" if piece == "%%" else piece for piece in re.split("(%[%s])", url)]


class RequestSender:
    """Sends the requests for messages."""

    def __init__(self, options: Options) -> None:
        self._is_post = bool(options.post)
        self._urls = options.post or options.get
        self._patterns = [url_pattern(url) for url in options.get]
        self._headers = options.headers()
        self._is_default = options.content_type == _OCTETS  # a message's headers may have its type
        self._tls = create_default_context()
        self._client = HttpClient(
            connect_timeout=seconds(options.http_client_connect_timeout),
            timeout=seconds(options.http_client_request_timeout),
            idle_timeout=_IDLE,
            keeps_bodies=False,
        )

    async def send(self, number: int, body: bytes, headers: Mapping[str, bytes]) -> None:
        """Send a message to one of the URLs. Raise HttpFailed."""
        if self._is_post:
            method, url, content = "POST", self._urls[number], body
        else:
            escaped = quote_plus(body)
            method, content = "GET", b""
            url = "".join(escaped if piece is None else piece for piece in self._patterns[number])
        answer = await self._client.fetch(method, url, tls=self._tls, headers=self._all_headers(headers), body=content)
        if not (200 <= answer.status < 300 if self._is_post else answer.status == 200):
            raise HttpFailed(f"got status code {answer.status}")

    def _all_headers(self, headers: Mapping[str, bytes]) -> list[tuple[str, str]]:
        """Return the headers of a request: the tool's own, and the message's in the form of `POST /pub`.

        The tool's own win. Headers that aren't valid in a request are left out.
        """
        if not headers:
            return self._headers
        found = [*self._headers]
        given = {name.lower() for name, _ in self._headers if name.lower() != "content-type" or not self._is_default}
        for name, value in without_bad_group(headers).items():
            field = name if name in _BY_THEIR_OWN_NAMES or name.startswith("ce-") else f"Nsq-Header-{name}"
            if field.lower() in given or not _is_field_value(value):
                continue
            found = [it for it in found if it[0].lower() != field.lower()]
            found.append((field, value.decode("latin-1")))
        return found

    async def close(self) -> None:
        await self._client.close_idle()


def handler(
    options: Options, sender: RequestSender, draw: Callable[[], float] = random.random
) -> Callable[[Message], Awaitable[None]]:
    """Return the handler of messages."""
    urls = options.post or options.get
    targets = Targets(urls, pool_for(options.mode, len(urls)), options.status_every)

    async def handle(message: Message) -> None:
        if options.sample < 1.0 and draw() > options.sample:
            return
        try:
            await targets.send(lambda number: sender.send(number, message.body, message.headers))
        except HttpFailed as error:
            log.error("ERROR: message %s - %s", message.id, error)
            raise Requeue from error

    return handle


async def run(options: Options, stop: trio.Event) -> int:
    config = client_config("nsq_to_http", options.consumer_opt, max_in_flight=options.max_in_flight)
    sender = RequestSender(options)
    await consume(
        options.topic,
        options.channel,
        handler(options, sender),
        nsqd=options.nsqd_tcp_address,
        lookupd=options.lookupd_http_address,
        config=config,
        concurrency=options.n,
        stop=stop,
    )
    await sender.close()
    return 0


def main() -> int:
    return run_tool("nsq_to_http", Options, run, about=ABOUT)
