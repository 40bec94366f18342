"""A short time of fuzzing for each parser of outside bytes; `python -m tests.fuzz` runs for longer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random
from typing import Final

import pytest

from tests.fuzz.fuzzing import CORPUS, Found, Target, fuzz, targets
from tests.support.lengths import sized
from tests.support.quick import unless_quick

# Of each target. The seed is always the same, and so are the first inputs.
SECONDS: Final = sized(short=unless_quick(4, quick=1), long=20) / len(targets())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_no_input_makes_a_parser_fail(target: Target) -> None:
    assert fuzz(target, seconds=SECONDS, seed=1, least=21) > 20


def test_a_parser_that_fails_is_found(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(data: bytes, random: Random) -> None:
        if b"\xff" in data:
            raise IndexError

    kept: list[bytes] = []
    monkeypatch.setattr("tests.fuzz.fuzzing._keep", lambda target, data: kept.append(data))
    with pytest.raises(Found, match="IndexError"):
        fuzz(Target("identify", run), seconds=10, seed=1)
    assert b"\xff" in kept[0]


def test_each_target_has_a_corpus_and_each_corpus_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {target.name for target in targets()}
    assert all(target.corpus for target in targets())
