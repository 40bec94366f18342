"""Runs this process in the role that its options ask for: a single nsqd, the supervisor of workers, or one worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nsqcommon.daemon import name_process, wait_for_signal
from nsqcommon.startup import TakenOver
from nsqd.workers.folders import refuse_folders_of_workers

if TYPE_CHECKING:
    from nsqd.options import Options


async def run(options: Options) -> None:
    """Run until asked to stop. Raises StartupError."""
    if options.worker >= 0:
        from nsqd.workers.worker import run_worker

        name_process(f"nsqd worker {options.worker}")
        await run_worker(options)
    elif options.workers:
        from nsqd.workers.supervisor import supervise  # imports no broker, so the supervisor stays small

        await supervise(options)
    else:
        from nsqd import daemon

        refuse_folders_of_workers(options.data_path)
        if options.standby:
            await _run_as_standby(options)
        else:
            await daemon.run(options)


async def _run_as_standby(options: Options) -> None:
    """Run, and start again as a standby if another process takes over."""
    from nsqd import daemon
    from nsqd.standby import start_again, was_taken_over

    is_asked_to_stop = is_taken_over = False

    async def wait_for_shutdown() -> None:
        nonlocal is_asked_to_stop
        await wait_for_signal()
        is_asked_to_stop = True

    if was_taken_over():
        options = replace(options, take_over=False)
    try:
        await daemon.run(options, wait_for_shutdown=wait_for_shutdown)
    except* TakenOver:  # the log has said who that was
        if is_asked_to_stop:
            raise
        is_taken_over = True
    if is_taken_over:
        start_again()
