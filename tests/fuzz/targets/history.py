"""Answers of /topic/read, as tools and Spark read them."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqcommon.wire.history import BadHistory, HistoryReader, StoredBatch
from tests.fuzz.fuzzing import pieces


def run(data: bytes, random: Random) -> None:
    reader = HistoryReader()
    with suppress(BadHistory):
        for piece in pieces(data, random):
            reader.receive(piece)
            while (event := reader.next_event()) is not None:
                if isinstance(event, StoredBatch):
                    list(event.messages())
