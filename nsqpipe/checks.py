"""What can be known before Spark is started: each function looks at one thing, and raises one line when a job cannot work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqpipe.settings import Job


def check(job: Job) -> None:
    """Of whatever this job has."""
