"""What ends a job, in one line for the one who runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

_OURS: Final = re.compile(r"^(?:Caused by: )?(?:pyspark_nsq(?:table)?|nsqpipe)\.\w+\.\w+: (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^\s*(?:Caused by)?: (?:[\w$]+\.)*([\w$]+)(?:: (.*))?$", re.MULTILINE)
_WRAPPED: Final = re.compile(r"^(?:[\w$]+\.)+[\w$]*(?:Error|Exception): ")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")  # with which deltalake's library decorates
_MOST: Final = 500  # characters


class PipeFailed(Exception):
    """The job cannot go on; the text says why and, where we know, what to do."""

    exit_status = 1


class WrongUsage(PipeFailed):
    """What was asked for cannot be meant: the command line is to be changed, not the world."""

    exit_status = 2


class SeveralFailed(PipeFailed):
    """What went wrong with several jobs, or in several places, each with a line of its own."""

    def __init__(self, failures: Sequence[PipeFailed]) -> None:
        super().__init__("\n".join(map(str, failures)))
        self.exit_status = max(failure.exit_status for failure in failures)


def of_job(name: str, error: BaseException) -> PipeFailed:
    """What went wrong with one job of several, with its name in front of it."""
    kind = WrongUsage if isinstance(error, WrongUsage) else PipeFailed
    return kind(f"{name} {error if isinstance(error, PipeFailed) else first_cause(error)}")


def first_cause(error: BaseException) -> str:
    """What went wrong at the bottom of it, in one line: Spark wraps it several times, and its traces are long.

    What our own source or sink said in a worker comes before all; then what Python raised there; then the last of Java's
    causes.
    """
    whole = "\n".join(_texts(error))
    if ours := _OURS.findall(whole):
        return _line(ours[-1])
    if raised := _PYTHON.findall(whole):
        return _said(*raised[-1])
    if causes := _CAUSE.findall(whole):
        *above, (kind, text) = causes
        for outer, more in reversed(above):
            if text and more.endswith(text):  # it says the same, and of what
                kind, text = outer, more
        return _said(kind, text)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return _said(type(error).__name__, str(error))


def _texts(error: BaseException) -> Iterator[str]:
    """All that is known of it: its own words, and the trace of the Java exception that it stands for."""
    yield str(error)
    trace = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None)  # here, or behind Connect
    if isinstance(trace, str):
        yield trace
    cause = getattr(error, "_cause", None) or error.__cause__
    if isinstance(cause, BaseException) and cause is not error:
        yield from _texts(cause)


def _said(kind: str, text: str) -> str:
    """The text alone, unless it takes the name to understand it."""
    found = _line(_WRAPPED.sub("", text))
    return f"{kind}: {found}" if found and " " not in found else found or kind


def _line(text: str) -> str:
    found = " ".join((_COLOUR.sub("", text).strip().splitlines() or [""])[0].split())
    return found if len(found) <= _MOST else f"{found[: _MOST - 1]}…"
