"""What ends a job, in one line for the one who runs it."""

from __future__ import annotations

import re


class PipeFailed(Exception):
    """The job cannot go on; the text says why and, where we know, what to do."""


def first_cause(error: BaseException) -> str:
    """The line of Spark's many that says what went wrong: that of the Python worker, if there was one."""
    text = str(error)
    raised = re.findall(r"^(?:pyspark_nsq\.errors|pyspark_nsqtable\.\w+)\.\w+: (.+)$", text, re.MULTILINE)
    if raised:
        return str(raised[-1])
    raised = re.findall(r"^\w[\w.]*(?:Error|Exception): (.+)$", text, re.MULTILINE)
    return str(raised[-1]) if raised else (text.strip().splitlines() or [type(error).__name__])[0]
