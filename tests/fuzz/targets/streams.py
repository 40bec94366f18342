"""Compressed streams: snappy's frames and deflate."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.streams.layer import Layer, StreamError
from nsqcommon.streams.snappy import SnappyLayer
from tests.fuzz.fuzzing import pieces


def run(data: bytes, random: Random) -> None:
    for layer in (SnappyLayer(), DeflateLayer(6)):
        with suppress(StreamError):
            _decode(layer, data, random)


def _decode(layer: Layer, data: bytes, random: Random) -> None:
    for piece in pieces(data, random):
        layer.decode(piece)
        while layer.has_more:
            layer.decode(b"")
