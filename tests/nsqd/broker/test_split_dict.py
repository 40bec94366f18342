"""Dictionaries that never move all of their entries at once."""

from __future__ import annotations

import sys
from random import Random

import pytest

from nsqd.broker.split_dict import PARTS, SplitDict


@pytest.mark.parametrize("keys", [10, 4_000, 9_000])
def test_it_has_what_a_dictionary_has(keys: int) -> None:
    random, model, split = Random(keys), dict[bytes, int](), SplitDict()
    for _ in range(4 * keys):
        key = b"%d" % random.randrange(keys)
        if random.random() < 0.3:
            assert split.pop(key) == model.pop(key, None)
        else:
            model[key] = random.randrange(1 << 100)
            split.put(key, model[key])
        assert split.count == len(model)
        assert (key in split, split.get(key)) == (key in model, model.get(key))
    assert {key: value for part in split.parts for key, value in part.items()} == model
    assert all(split.get(key) == value for key, value in model.items())


def test_a_thousand_keys_more_move_few_of_the_others() -> None:
    split, sizes, most = SplitDict(), list[int](), 0
    for thousand in range(200):
        for number in range(1_000):
            split.put(b"%d-%d" % (thousand, number), number)
        now = [sys.getsizeof(part) for part in split.parts]
        if len(now) == len(sizes):  # a dictionary that is larger than before has moved all that it had
            moved = [len(part) for part, was, size in zip(split.parts, sizes, now, strict=True) if size > was]
            most = max(most, sum(moved))
        sizes = now
    assert len(sizes) == PARTS
    assert 0 < most < 60_000
    assert max(map(len, split.parts)) < 1.2 * 200_000 / PARTS
