"""Feeds mutations of a stored corpus to a parser, and reports forbidden behaviour.

A target is a module of `tests/fuzz/targets`: `run(data, random)` feeds the data to a parser, and catches the exceptions
that the parser documents; any other one is a bug. Its corpus is the folder of the same name. Inputs that found a bug
stay in the corpus.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Final

HERE: Final = Path(__file__).parent
CORPUS: Final = HERE / "corpus"
LARGEST: Final = 64 * 1024  # largest mutation, in bytes
MOST_SECONDS: Final = 2.0  # of processor time for one input, on a busy machine; the slowest parser needs 0.05
MOST_MEMORY: Final = 256 << 20  # bytes by which the memory of a run may grow

INTERESTING: Final = (
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\0",
    b"\n",
    b"\r\n\r\n",
    b" ",
    b"{}",
    b"[",
    b'"\\ud800"',
    b"1e999",
    b"-1",
    b"9" * 5000,
    b"%zz",
    b"(",
    b"{1000}",
    b"*",
)

Run = Callable[[bytes, Random], None]


@dataclass(frozen=True)
class Target:
    name: str
    run: Run

    @property
    def corpus(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


def targets() -> list[Target]:
    names = sorted(path.stem for path in (HERE / "targets").glob("*.py"))
    return [Target(name, import_module(f"tests.fuzz.targets.{name}").run) for name in names]


class Found(AssertionError):
    """A parser has misbehaved."""


def fuzz(target: Target, *, seconds: float, seed: int, least: int = 0) -> int:
    """Return how many inputs were tried; the corpus itself comes first. Raises Found, with the input kept in a file.

    At least `least` inputs are tried, even if a busy machine takes longer for them.
    """
    random = Random(f"{target.name} {seed}")
    corpus = target.corpus
    before = _peak()
    stop = time.monotonic() + seconds
    for count, data in enumerate(_inputs(corpus, random)):
        if count >= max(least, len(corpus)) and time.monotonic() >= stop:
            return count
        began = time.process_time()
        try:
            target.run(data, random)
        except Exception as error:
            raise Found(f"{target.name}: {error!r}, input kept as {_keep(target, data)}") from error
        if (took := time.process_time() - began) > MOST_SECONDS:
            raise Found(f"{target.name}: took {took:.1f} s, input kept as {_keep(target, data)}")
        if (grown := _peak() - before) > MOST_MEMORY:
            raise Found(f"{target.name}: grew by {grown >> 20} MiB, input kept as {_keep(target, data)}")
    raise AssertionError("mutations never end")


def pieces(data: bytes, random: Random) -> Iterator[bytes]:
    """Return the data in pieces, as packets might cut it."""
    while data:
        cut = random.choice((1, 7, 100, 5000, len(data)))
        yield data[:cut]
        data = data[cut:]


def _inputs(corpus: list[bytes], random: Random) -> Iterator[bytes]:
    yield from corpus
    while True:
        data = random.choice(corpus)
        for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
            data = _mutated(data, corpus, random)
        yield data[:LARGEST]


def _mutated(data: bytes, corpus: list[bytes], random: Random) -> bytes:
    at = random.randint(0, len(data))
    end = min(len(data), at + random.choice((0, 1, 2, 4, 8, 64)))
    match random.randrange(7):
        case 0:
            return data[:at] + bytes((random.randrange(256),)) + data[at + 1 :]
        case 1:
            return data[:at] + random.choice(INTERESTING) + data[end:]
        case 2:
            return data[:at] + data[end:]
        case 3:
            return data[:at] + data[at:end] * random.choice((2, 3, 100)) + data[end:]
        case 4:
            other = random.choice(corpus)
            return data[:at] + other[random.randint(0, len(other)) :]
        case 5:
            return data[:at]
    flipped = bytearray(data)
    if data:
        flipped[at % len(data)] ^= 1 << random.randrange(8)
    return bytes(flipped)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _keep(target: Target, data: bytes) -> Path:
    path = CORPUS / target.name / f"found-{sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path.relative_to(HERE.parents[1])
