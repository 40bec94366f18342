"""Runs one worker: an nsqd that reports to the supervisor when it is ready, and stops when the supervisor is gone.

It stands apart from run.py so that the supervisor, which also starts there, doesn't import the broker.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

import trio

from nsqcommon import logs
from nsqcommon.daemon import first_of, wait_for_signal
from nsqd import daemon
from nsqd.workers.link import worker_end
from nsqd.workers.settings import check_addresses, worker_options

if TYPE_CHECKING:
    from nsqd.options import Options
    from nsqd.workers.link import WorkerEnd

log = logging.getLogger(__name__)


async def run_worker(whole: Options) -> None:
    """Run worker `whole.worker` until it is asked to stop, has drained, or loses its supervisor."""
    link = worker_end(os.environ)
    check_addresses(whole)
    options = worker_options(whole, starts_again=link is not None and link.starts_again)
    logs.configure(
        prefix=options.log_prefix,
        level=options.log_level,
        log_format=options.log_format,
        fields={"worker": options.worker},
    )
    if link is None:
        await daemon.run(options)
    else:
        await _run_supervised(options, link)


async def _run_supervised(options: Options, link: WorkerEnd) -> None:
    async def wait_for_the_end() -> None:
        await first_of(wait_for_signal, partial(_wait_for_supervisor_exit, link))

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(daemon.run, options, wait_for_shutdown=wait_for_the_end))
        await link.report_ready()


async def _wait_for_supervisor_exit(link: WorkerEnd) -> None:
    await link.wait_for_supervisor_exit()
    log.error("the supervisor is gone: stopping this worker")
