"""Reads the file that `nsqpipe aggregate --results` writes, whenever it changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from nsqadmin.cluster.pipeline import TopicWindows, parse

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]


class PipelineResults:
    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: _Stamp | None = None
        self._topics: Mapping[str, TopicWindows] = {}

    def of_topic(self, topic: str) -> TopicWindows | None:
        """Return the file's windows for the topic; None without a file, or if it can't be read."""
        try:
            found = os.stat(self._path)
            stamp = found.st_ino, found.st_mtime_ns, found.st_size
            if stamp != self._stamp:
                self._stamp, self._topics = stamp, {}
                with open(self._path, encoding="utf-8") as file:
                    self._topics = parse(file.read())
        except FileNotFoundError:
            self._stamp, self._topics = None, {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("the pipeline's results cannot be read path=%s error=%r", self._path, error)
        return self._topics.get(topic)
