"""Logging to stderr in NSQ's format, one line per event, or as one JSON object per event for machines.

    [nsqd] 2024/05/01 09:30:00.123456 INFO: TCP: listening on [::]:4150

Modules log to `logging.getLogger(__name__)`; only a daemon's main configures logging. Our own packages log at the level
you ask for, but libraries never below WARNING, because their details don't help an operator.
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
    """NSQ's levels. `/config/log_level` returns these numbers."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5

    @classmethod
    def parse(cls, word: str) -> Self:
        """Parse the name of a level, in any case. Raises ValueError with a list of the levels for any other word."""
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
    """Send all logging to `stream` (stderr by default). You may call it again; the last call wins.

    The `json` format adds `fields` to each line.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(fields or {}) if log_format == "json" else NsqFormatter(prefix))
    logging.getLogger().handlers[:] = [handler]
    set_level(level)


def set_level(level: LogLevel) -> None:
    """Change the level of all logging; `PUT /config/log_level` calls this."""
    threshold = _PYTHON_LEVELS[level]
    logging.getLogger().setLevel(max(threshold, logging.WARNING))
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(threshold)


def skip_unused_record_fields() -> None:
    """Keep Python's logging from collecting fields that our formats never show, in the whole process.

    Finding the source line of a log call is a third of its cost. Python's logging HOWTO recommends these switches under
    "Optimization".
    """
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class NsqFormatter(logging.Formatter):
    """`<prefix>YYYY/MM/DD HH:MM:SS.uuuuuu LEVEL: message` in local time; a traceback follows on its own lines."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._second = -1  # of the last line
        self._moment = ""  # the same as text

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:  # formatting it is half of the work, and a second may have thousands of lines
            self._second = second
            self._moment = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
        micros = min(round((record.created - second) * 1e6), 999_999)  # rounding must not carry into the second
        line = f"{self._prefix}{self._moment}.{micros:06d} {_word_of(record)}: {_on_one_line(record.getMessage())}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return mask_passwords(line)


class JsonFormatter(logging.Formatter):
    """One object per line: ts (RFC 3339, UTC), level, logger, message, `fields`, and the exception if there is one."""

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
    # A message may quote a client, and a client must not be able to forge the next line of the log.
    if "\n" in message or "\r" in message:
        return message.replace("\r", "\\r").replace("\n", "\\n")
    return message
