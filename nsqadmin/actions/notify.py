"""Notifies a URL of each action, as NSQ's nsqadmin does: one POST at a time, without retries."""

from __future__ import annotations

import logging
import platform
from time import time
from typing import TYPE_CHECKING, Final

import httpx
import trio

from nsqadmin.actions.plan import Action, Kind
from nsqadmin.upstream.client import FAILURES
from nsqcommon import nsq_json
from nsqcommon.options import seconds

if TYPE_CHECKING:
    from nsqadmin.http.responses import Caller
    from nsqadmin.options import Options

log = logging.getLogger(__name__)

_WAITING: Final = 1000  # notifications; if the endpoint hangs, we drop further ones and log that


class Notifier:
    def __init__(self, options: Options) -> None:
        self._url = options.notification_http_endpoint
        self._timeout = httpx.Timeout(
            seconds(options.http_client_request_timeout), connect=seconds(options.http_client_connect_timeout)
        )
        self._put, self._get = trio.open_memory_channel[bytes](_WAITING)
        self._via = platform.node()

    def action(self, action: Action, caller: Caller) -> None:
        if not self._url:
            return
        if action.kind is Kind.CREATE_CHANNEL:  # NSQ sends one for the topic, too, even if the topic existed
            self._send(notification(Kind.CREATE_TOPIC, action, caller, self._via, channel=""))
        self._send(notification(action.kind, action, caller, self._via, channel=action.channel))

    def _send(self, body: bytes) -> None:
        try:
            self._put.send_nowait(body)
        except trio.WouldBlock:
            log.error("failed to POST notification - %d are waiting already", _WAITING)

    async def run(self) -> None:
        """Send notifications until cancelled. A failing endpoint only causes a log line."""
        async with httpx.AsyncClient(trust_env=False, timeout=self._timeout, follow_redirects=True) as client:
            async for body in self._get:
                log.info("POSTing notification to %s", self._url)
                try:
                    with trio.fail_after(self._timeout.read or 0.0):
                        await client.post(self._url, content=body, headers={"content-type": "application/json"})
                except FAILURES as error:
                    log.error("failed to POST notification - %s", str(error) or type(error).__name__)


def notification(kind: Kind, action: Action, caller: Caller, via: str, *, channel: str) -> bytes:
    """Return the notification as JSON. As in NSQ, an empty channel, node or user is left out."""
    node = action.nodes[0] if kind is Kind.REMOVE_FROM_NODE else ""
    fields: dict[str, object] = {"action": kind.value, "topic": action.topic}
    fields |= {name: value for name, value in (("channel", channel), ("node", node)) if value}
    fields["timestamp"] = int(time())
    if caller.basic_user:
        fields["user"] = caller.basic_user
    fields |= {"remote_ip": caller.remote, "user_agent": caller.user_agent, "url": caller.url, "via": via}
    return nsq_json.dumps(fields)
