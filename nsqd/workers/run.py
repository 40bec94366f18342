"""Runs this process in the role that its options ask for: a single nsqd, the supervisor of workers, or one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqd.workers.folders import refuse_folders_of_workers

if TYPE_CHECKING:
    from nsqd.options import Options


async def run(options: Options) -> None:
    """Run until asked to stop. Raises StartupError."""
    if options.worker >= 0:
        from nsqd.workers.worker import run_worker

        await run_worker(options)
    elif options.workers:
        from nsqd.workers.supervisor import supervise  # imports no broker, so the supervisor stays small

        await supervise(options)
    else:
        from nsqd import daemon

        refuse_folders_of_workers(options.data_path)
        await daemon.run(options)
