"""Logging as NSQ does it: one line for each event on stderr, or one JSON object where a machine reads the log.

    [nsqd] 2024/05/01 09:30:00.123456 INFO: TCP: listening on [::]:4150

Modules log to `logging.getLogger(__name__)`; only a daemon's main configures logging. Our own packages log at the level
that was asked for, libraries never below WARNING: an operator does not need to know what a library does.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final, Self, TextIO

from nsqcommon.passwords import mask_passwords

OUR_PACKAGES: Final = ("nsqcommon", "nsqd", "nsqlookupd", "nsqadmin", "nsqclient")
LOG_FORMATS: Final = ("nsq", "json")


class LogLevel(IntEnum):
    """NSQ's levels. `/config/log_level` answers with these numbers."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5

    @classmethod
    def parse(cls, word: str) -> Self:
        """Read a level's word in any case; the ValueError for another word lists the levels."""
        try:
            return cls[word.upper()]
        except KeyError:
            words = ", ".join(level.word for level in cls)
            raise ValueError(f"invalid log level '{word}' ({words})") from None

    @property
    def word(self) -> str:
        return self.name.lower()


_PYTHON_LEVELS: Final[Mapping[LogLevel, int]] = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARN: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.FATAL: logging.CRITICAL,
}
_WORDS: Final[Mapping[int, str]] = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARNING",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "FATAL",
}


def configure(
    *,
    prefix: str,
    level: LogLevel,
    log_format: str = "nsq",
    stream: TextIO | None = None,
    fields: Mapping[str, object] | None = None,
) -> None:
    """Send all logging to `stream` (stderr by default). May be called again: the last call holds.

    `fields` are in each line of the format json.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(fields or {}) if log_format == "json" else NsqFormatter(prefix))
    logging.getLogger().handlers[:] = [handler]
    set_level(level)


def set_level(level: LogLevel) -> None:
    """Change the level of all logging at once; `PUT /config/log_level` calls this."""
    threshold = _PYTHON_LEVELS[level]
    logging.getLogger().setLevel(max(threshold, logging.WARNING))
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(threshold)


def skip_unused_record_fields() -> None:
    """Stop logging from collecting fields that our formats never show, for the whole process.

    Finding the place in the code that a line comes from is a third of the line's cost. Python's logging HOWTO
    recommends these switches under "Optimization".
    """
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class NsqFormatter(logging.Formatter):
    """`<prefix>YYYY/MM/DD HH:MM:SS.uuuuuu LEVEL: message` in local time; a traceback follows on its own lines."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._second = -1  # in which the last line was written
        self._moment = ""  # that second as text

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:  # formatting it is half of the work, and a busy second has thousands of lines
            self._second = second
            self._moment = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
        micros = min(round((record.created - second) * 1e6), 999_999)
        line = f"{self._prefix}{self._moment}.{micros:06d} {_word_of(record)}: {_on_one_line(record.getMessage())}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return mask_passwords(line)


class JsonFormatter(logging.Formatter):
    """One object per line: ts (RFC 3339, UTC), level, logger, message, and the exception if there is one.

    `fields` are in each of them as well.
    """

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": _word_of(record).lower(),
            "logger": record.name,
            "message": mask_passwords(record.getMessage()),
            **self._fields,
        }
        if record.exc_info:
            fields["exception"] = mask_passwords(self.formatException(record.exc_info))
        return json.dumps(fields)


def _word_of(record: logging.LogRecord) -> str:
    return _WORDS.get(record.levelno, record.levelname)


def _on_one_line(message: str) -> str:
    # A message may quote what a client sent, which must not be able to forge the next line of the log.
    if "\n" in message or "\r" in message:
        return message.replace("\r", "\\r").replace("\n", "\\n")
    return message
