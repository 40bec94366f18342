from __future__ import annotations

import pytest

from nsqcommon.entries_file import BadEntries
from nsqd.policy.parse import doubts, parse_policies


def mistakes(text: str) -> list[str]:
    with pytest.raises(BadEntries) as caught:
        parse_policies(text)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_an_empty_file_demands_nothing() -> None:
    assert parse_policies("# later\n").entries == []


def test_entries_have_the_lines_of_their_headers() -> None:
    text = "# bounds\n\n[[policy]]\r\nttl = '7d'\n\n  [[ policy ]] # for all\nmax_attempts = 5\n"
    assert [entry.line for entry in parse_policies(text).entries] == [3, 6]


@pytest.mark.parametrize(("key", "value", "text"), [
    ("max_attempts", "0", "max_attempts: must be a number from 1 to 65535, not 0"),
    ("max_attempts", "65536", "max_attempts: must be a number from 1 to 65535, not 65536"),
    ("max_attempts", '"10"', "max_attempts: must be a number from 1 to 65535, not '10'"),
    ("max_attempts", "true", "max_attempts: must be a number from 1 to 65535, not True"),
    ("max_buried", "-1", "max_buried: must be a number of 1 or more, not -1"),
    ("backoff", '"quick"', 'backoff: must be one of "exponential", "linear", not \'quick\''),
    ("breaker", "0", "breaker: must be more than 0, not 0"),
    ("breaker", "1.5", "breaker: must be a number from 0 to 1, not 1.5"),
    ("breaker", "nan", "breaker: must be a number from 0 to 1, not nan"),
    ("max_rate", "500", 'max_rate: must be a rate in quotes, such as "500/s", "30/m" or "10/h", not 500'),
    ("max_rate", '"0/s"', 'max_rate: must be a rate in quotes, such as "500/s", "30/m" or "10/h", not \'0/s\''),
    ("max_rate", '"5/d"', 'max_rate: must be a rate in quotes, such as "500/s", "30/m" or "10/h", not \'5/d\''),
    ("max_in_flight", "0", "max_in_flight: must be a number from 1 to 1000000000, not 0"),
    ("max_in_flight_per_group", "0", "max_in_flight_per_group: must be a number of 1 or more, not 0"),
    ("order", '"topic"', 'order: must be one of "group", not \'topic\''),
    ("share", "true", 'share: must be one of "group", not True'),
    ("weights", "5", "weights: must name groups and their weights, such as {gold = 5}, not 5"),
    ("weights", "{}", "weights: must name groups and their weights, such as {gold = 5}, not {}"),
    ("weights", '{gold = "5"}',
     "weights: the weight of 'gold' must be a number from 1 to 1000, not {'gold': '5'}"),
    ("weights", "{gold = 0}", "weights: the weight of 'gold' must be a number from 1 to 1000, not {'gold': 0}"),
    ("weights", '{"" = 1}', "weights: names of groups must have 1 to 128 bytes, not {'': 1}"),
    ("max_held", "-1", "max_held: must be a number of 1 or more, not -1"),
    ("ttl", '"0"', "ttl: must be more than 0, not '0'"),
    ("ttl", '"-1s"', 'ttl: must be a duration in quotes, such as "30s", "10m", "12h" or "7d", not \'-1s\''),
    ("ttl", '"7x"', 'ttl: must be a duration in quotes, such as "30s", "10m", "12h" or "7d", not \'7x\''),
    ("ttl", "7", 'ttl: must be a duration in quotes, such as "30s", "10m", "12h" or "7d", not 7'),
    ("max_bytes", '"20 GB"',
     'max_bytes: must be a number of bytes, or a size in quotes, such as "500MB" or "20GiB", not \'20 GB\''),
    ("max_bytes", "2.5",
     'max_bytes: must be a number of bytes, or a size in quotes, such as "500MB" or "20GiB", not 2.5'),
    ("max_bytes", '"0GB"', "max_bytes: must be more than 0, not '0GB'"),
    ("ack", '"never"', 'ack: must be one of "memory", "written", "synced", "remote", not \'never\''),
    ("topic", '"a/b"', "topic: 'a/b' is neither a name nor a pattern"),
    ("channel", "5", "channel: 5 is neither a name nor a pattern"),
    ("max_atempts", "10", "max_atempts: unknown key"),
    ("dry_run", '"yes"', "dry_run: must be true or false, not 'yes'"),
])  # fmt: skip
def test_what_is_wrong_is_named_with_its_key(key: str, value: str, text: str) -> None:
    needed = "" if key == "max_buried" else "max_buried = 1\n"
    assert mistakes(f"[[policy]]\n{needed}{key} = {value}\n") == [f"line 1: {text}"]


@pytest.mark.parametrize(("text", "wrong"), [
    ('backoff = "linear"\nbackoff_min = "2m"\nbackoff_max = "1m"', "backoff_min: it is longer than backoff_max"),
    ('backoff_min = "2m"', "backoff_min: it has no effect without backoff"),
    ('overflow = "drop-oldest"', "overflow: it has no effect without max_messages or max_bytes"),
    ('max_messages = 5\noverflow = "bury"',
     'overflow: only a channel can bury; add channel = "*" for the channels of these topics'),
    ('weights = {gold = 5}\norder = "group"', "weights: it has no effect without share"),
    ("max_held = 5", "max_held: it has no effect without max_in_flight_per_group or order or share"),
    ('order = "group"\nmax_in_flight_per_group = 2',
     'max_in_flight_per_group: order = "group" allows only 1'),
    ('order = "group"\ndry_run = true', "order: it has no dry run"),
    ('channel = "c"\nack = "synced"', "ack: it applies to topics, so it cannot be in an entry with a channel"),
    ('retention_time = "7d"\ndry_run = true', "retention_time: it has no dry run"),
    ('topic = "orders"', "the entry has no rules"),
])  # fmt: skip
def test_what_could_not_have_an_effect_is_refused(text: str, wrong: str) -> None:
    assert mistakes(f"[[policy]]\n{text}\n") == [f"line 1: {wrong}"]


def test_a_key_may_be_completed_in_another_entry_about_the_same() -> None:
    parse_policies("[[policy]]\ntopic = 'a'\nbackoff_min = '5s'\n[[policy]]\nbackoff = 'linear'\n")
    text = "[[policy]]\nchannel = 'c'\noverflow = 'bury'\n[[policy]]\nmax_bytes = '1GB'\n"  # that is about topics
    assert mistakes(text) == ["line 1: overflow: it has no effect without max_messages or max_bytes"]


@pytest.mark.parametrize(("first", "second", "is_hidden"), [
    ("", "topic = 'a'", True),
    ("topic = 'a.*'", "topic = 'a.*'", True),
    ("topic = 'a.*'", "topic = 'a.b'", False),  # not decided by the texts of the patterns
    ("topic = 'a'", "", False),
    ("channel = 'c'", "topic = 'a'", False),
    ("channel = '*'", "channel = 'c'", True),
    ("topic = 'a'\nchannel = 'c'", "channel = 'c'", False),
])  # fmt: skip
def test_an_entry_that_comes_too_late_is_refused(first: str, second: str, is_hidden: bool) -> None:
    text = f"[[policy]]\nmax_attempts = 5\n{first}\n[[policy]]\nmax_attempts = 7\n{second}\n"
    if is_hidden:
        line = 4 + first.count("\n")
        wrong = f"line {line}: max_attempts: it has no effect, because line 1 decides it for all of these"
        assert mistakes(text) == [wrong]
    else:
        assert len(parse_policies(text).entries) == 2


def test_a_bound_of_topics_does_not_hide_the_one_of_channels() -> None:
    text = "[[policy]]\nmax_messages = 5\n[[policy]]\nchannel = '*'\nmax_messages = 7\n"
    assert len(parse_policies(text).entries) == 2


def test_all_mistakes_come_at_once_in_the_order_of_lines() -> None:
    text = "[[policy]]\nttl = 5\nbreakr = 1\n\n[[policy]]\nmax_rate = '5/x'\n"
    assert [mistake.split(":")[0] for mistake in mistakes(text)] == ["line 1", "line 1", "line 5"]
    assert [mistake.split(":")[1] for mistake in mistakes(text)] == [" ttl", " breakr", " max_rate"]


@pytest.mark.parametrize(("text", "wrong"), [
    ("[[policy]\n", "at line 1"),
    ("[[policy]]\nttl = '1s'\nttl = '2s'\n", "at line 3"),
    ("[policy]\nttl = '1s'\n", "each entry must begin with [[policy]] in a line of its own"),
    ("policy = [{ttl = '1s'}]\n", "each entry must begin with [[policy]] in a line of its own"),
    ("[[policy]]\ntopic = '''\n[[policy]]\n'''\n", "each entry must begin with [[policy]] in a line of its own"),
    ("[[policies]]\nttl = '1s'\n", "expected only [[policy]] tables, not policies"),
    ("a = " + "[" * 5000, ""),
])  # fmt: skip
def test_what_is_no_list_of_entries_is_refused(text: str, wrong: str) -> None:
    assert wrong in mistakes(text)[0]


@pytest.mark.parametrize(("entries", "is_doubtful"), [
    (["order = 'group'"], True),
    (["order = 'group'\nmax_attempts = 5"], False),
    (["channel = 'mail'\norder = 'group'", "max_attempts = 5"], False),
    (["topic = 'a'\norder = 'group'", "channel = '*'\nmax_attempts = 5"], False),
    (["topic = 'a'\norder = 'group'", "topic = 'b'\nmax_attempts = 5"], True),
    (["order = 'group'", "max_attempts = 5\ndry_run = true"], True),
    (["max_in_flight_per_group = 1\nshare = 'group'"], False),
])  # fmt: skip
def test_order_without_an_end_of_attempts_is_doubtful(entries: list[str], is_doubtful: bool) -> None:
    found = list(doubts(parse_policies("".join(f"[[policy]]\n{entry}\n" for entry in entries))))
    assert [str(it) for it in found] == (
        ["line 1: order: without max_attempts, a message that always fails stops its group for ever"]
        if is_doubtful
        else []
    )
