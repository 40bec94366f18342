"""A standby: a process that waits until the owner of its node's name is gone, and then goes on as the owner.

    bound ── HTTP says "standby" ──> owns the name ── recovery ── listens for TCP ──> an nsqd like any other
               │                                                                        │ another process takes over
               └── SIGTERM, SIGUSR1: ends with status 0                                 v
                                                                           starts again, as a standby

While it waits, its data path is locked, and nothing in it changes but the time of owner.json. It isn't registered at any
nsqlookupd. Its TCP port is bound, so that a port that is in use is reported at the start, and refuses connections.

After another process has taken over, the process replaces itself by a new one (`exec`), with the same command line and the
same pid. That is the honest way to forget all that an owner had: threads that are in the middle of a write to the data path
end at that moment, together with the lock on it. In the same process, one of them could write after we have begun to make
the data path what the next owner needs.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from nsqcommon import web
from nsqcommon.budget import Budget
from nsqcommon.daemon import first_of
from nsqcommon.entry import hold_signals
from nsqcommon.net import format_listener
from nsqcommon.options import seconds
from nsqcommon.startup import StartupError
from nsqd.http import make_standby_app

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from nsqd.auth.rights_file import RightsFile
    from nsqd.http import Guard
    from nsqd.log.store import DiskStore
    from nsqd.options import Options
    from nsqd.remote.copy import RemoteCopy

log = logging.getLogger(__name__)

STARTS_AGAIN: Final = "NSQD_FENCED"  # in the environment of a process that another one had taken over from
_CONNECTIONS: Final = 64
_GRACE: Final = 0.5  # seconds for responses in progress, when it has taken over


async def wait_for_name(
    copy: RemoteCopy,
    store: DiskStore,
    options: Options,
    listener: socket.socket | None,
    wait_for_shutdown: Callable[[], Awaitable[object]],
    announce: Callable[[], None],
    *,
    rights: RightsFile | None,
    guard: Guard | None,
    only_probes: bool,
) -> bool:
    """Wait until this process owns the name, and serve HTTP meanwhile. Return False if it was asked to stop before.

    Calls `announce` when it waits.
    """
    if listener is None:
        raise StartupError("--standby needs --http-address, where another standby asks whether this process is alive")
    http_address = copy.address_of(options)
    vigil = copy.vigil(seconds(options.standby_after), http_address)
    app = make_standby_app(vigil.snapshot, lambda: copy.requests, guard=guard, only_probes=only_probes)
    stopped = Event()
    # The receiver comes first, because a supervisor may have us drain as soon as it knows of us.
    with trio.open_signal_receiver(signal.SIGUSR1) as drains:
        async with trio.open_nursery() as services:
            if rights is not None:
                services.start_soon(rights.follow)
            budget = Budget(_CONNECTIONS, "HTTP")
            await services.start(partial(web.serve, app, [listener], budget=budget, grace=_GRACE))
            log.info("HTTP: listening on %s", format_listener(listener))
            announce()
            owns = trio.Event()

            async def own() -> None:
                wait = partial(copy.wait_for_name, store, vigil, stopped, http_address=http_address)
                await trio.to_thread.run_sync(wait, abandon_on_cancel=True)
                owns.set()

            try:
                await first_of(own, wait_for_shutdown, drains.__anext__)
            finally:
                stopped.set()
            services.cancel_scope.cancel()
    return owns.is_set()


def was_taken_over(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process has been an owner. Then it must not --take-over: that was meant for another start."""
    return STARTS_AGAIN in environ


def start_again() -> NoReturn:
    """Replace this process by one that begins as a standby. Call it when nothing of the owner is left to close."""
    hold_signals()  # a signal to stop stays pending until the new process looks for it
    log.warning("starting again as a standby")
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os.environ[STARTS_AGAIN] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
