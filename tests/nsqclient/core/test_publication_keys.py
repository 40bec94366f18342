"""The keys that a producer gives its publishes."""

from __future__ import annotations

from itertools import count

from nsqclient.core.publication import Names
from nsqcommon.wire.extensions import is_valid_key

SHORT = 15  # nsqd keeps a longer key as a hash


def test_a_key_is_short_and_valid_and_no_other_has_it() -> None:
    names = Names()
    keys = [names.next() for _ in range(10_000)]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {SHORT}
    assert all(map(is_valid_key, keys))


def test_it_stays_its_own_beyond_sixteen_million_publishes() -> None:
    names = Names()
    first = [names.next() for _ in range(3)]
    names._numbers = count((1 << 24) - 2)
    later = [names.next() for _ in range(4)]
    assert len({*first, *later}) == 7
    assert all(map(is_valid_key, later))
    assert list(map(len, later)) == [SHORT, SHORT, SHORT + 4, SHORT + 4]


def test_producers_have_names_of_sixty_random_bits() -> None:
    names = {Names().next()[:10] for _ in range(10_000)}
    assert len(names) == 10_000
    for place in range(10):  # each character has about all of its 64 values
        assert len({name[place] for name in names}) == 64
