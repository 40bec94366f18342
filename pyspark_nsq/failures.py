"""The errors that end a job, each in one line for the person who runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

_OURS: Final = re.compile(r"^(?:Caused by: )?(?:pyspark_nsq|nsqpipe|nsqcommon)(?:\.\w+){2,}: (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^\s*(?:Caused by)?: (?:[\w$]+\.)*([\w$]+)(?:: (.*))?$", re.MULTILINE)
_WRAPPED: Final = re.compile(r"^(?:[\w$]+\.)+[\w$]*(?:Error|Exception): ")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")  # deltalake's errors have colours
_MOST: Final = 500  # characters of a line


class PipeFailed(Exception):
    """The job can't continue; the text says why and, if we know, what to do."""

    exit_status = 1


class WrongUsage(PipeFailed):
    """The command line is wrong and has to be changed."""

    exit_status = 2


class SeveralFailed(PipeFailed):
    """Several jobs failed, or several things are wrong. The text has a line for each."""

    def __init__(self, failures: Sequence[PipeFailed]) -> None:
        super().__init__("\n".join(map(str, failures)))
        self.exit_status = max(failure.exit_status for failure in failures)


def of_job(name: str, error: BaseException) -> PipeFailed:
    """Return the failure of one of several jobs, with the job's name in front."""
    kind = WrongUsage if isinstance(error, WrongUsage) else PipeFailed
    return kind(f"{name} {error if isinstance(error, PipeFailed) else first_cause(error)}")


def first_cause(error: BaseException) -> str:
    """Return the root cause of an error in one line. Spark wraps errors several times, and its traces are long.

    An error of our own source or sink in a worker takes precedence, then any Python error there, then the last of
    Java's causes.
    """
    whole = "\n".join(_texts(error))
    if ours := _OURS.findall(whole):
        return _line(ours[-1])
    if raised := _PYTHON.findall(whole):
        return _in_words(*raised[-1])
    if causes := _CAUSE.findall(whole):
        *above, (kind, text) = causes
        for outer, more in reversed(above):
            if text and more.endswith(text):  # the outer one says the same, and what it is about
                kind, text = outer, more
        return _in_words(kind, text)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return _in_words(type(error).__name__, str(error))


def _texts(error: BaseException) -> Iterator[str]:
    """Yield all texts about an error: its own, the trace of its Java exception, and the texts of its causes."""
    yield str(error)
    trace = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None)  # the latter with Connect
    if isinstance(trace, str):
        yield trace
    cause = getattr(error, "_cause", None) or error.__cause__
    if isinstance(cause, BaseException) and cause is not error:
        yield from _texts(cause)


def _in_words(kind: str, text: str) -> str:
    """Return the text, with the error's name in front if the text is only one word."""
    found = _line(_WRAPPED.sub("", text))
    return f"{kind}: {found}" if found and " " not in found else found or kind


def _line(text: str) -> str:
    found = " ".join((_COLOUR.sub("", text).strip().splitlines() or [""])[0].split())
    return found if len(found) <= _MOST else f"{found[: _MOST - 1]}…"
