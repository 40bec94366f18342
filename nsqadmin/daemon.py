"""nsqadmin as one tree of tasks: what it is made of, in which order it starts, and how it stops."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from common import web
from common.daemon import tune_garbage_collection, version_line, wait_for_signal
from common.net import bind, close_listener, format_listener
from nsqadmin import monitoring, pages
from nsqadmin.access import Access, read_policy
from nsqadmin.app import App
from nsqadmin.services import Services
from nsqadmin.view import open_saved

if TYPE_CHECKING:
    from nsqadmin.options import Options

log = logging.getLogger(__name__)


async def run(
    options: Options,
    *,
    wait_for_shutdown: Callable[[], Awaitable[object]] = wait_for_signal,
    task_status: trio.TaskStatus[socket.socket] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `wait_for_shutdown` returns. StartupError when something keeps it from starting."""
    policy = read_policy(options)
    services = Services(options=options, view=open_saved(options.snapshot), policy=policy)
    listener = bind(options.http_address)
    try:
        log.info("%s", version_line("nsqadmin"))
        app = _app(services)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(web.serve, app, [listener]))
            log.info("HTTP: listening on %s", format_listener(listener))
            tune_garbage_collection()
            task_status.started(listener)
            await wait_for_shutdown()
            log.info("HTTP: closing %s", format_listener(listener))
            nursery.cancel_scope.cancel()
    finally:
        close_listener(listener)


def _app(services: Services) -> App:
    options = services.options
    routes = [*monitoring.routes(services), *pages.routes(services)]
    access = Access(options, lambda: services.policy)
    return App(routes, access, prefix=options.prefix, image_source=_image_source(options))


def _image_source(options: Options) -> str:
    """Graphite's pictures come from there, unless we hand them on."""
    if not options.graphite_url or options.proxy_graphite:
        return ""
    parts = urlsplit(options.graphite_url)
    return f"{parts.scheme}://{parts.netloc}"
