from __future__ import annotations

import pytest

from nsqcommon.nsq_json import JsonError
from nsqd.go_import.metadata import parse_metadata


def parsed(text: str) -> dict[str, tuple[bool, dict[str, bool]]]:
    return {name: (it.paused, it.channels) for name, it in parse_metadata(text.encode()).topics.items()}


def test_topics_channels_and_pauses() -> None:
    assert parsed(
        '{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true},{"name":"d","paused":false}]},'
        '{"name":"u","paused":true,"channels":null}],"version":"1.3.0"}'
    ) == {"t": (False, {"c": True, "d": False}), "u": (True, {})}


@pytest.mark.parametrize("text", ["null", "{}", '{"topics":null}', '{"topics":[]}', ' {"version":3} \n'])
def test_nothing_is_no_error(text: str) -> None:
    assert parsed(text) == {}


def test_names_of_fields_are_read_whatever_their_case_and_others_ignored() -> None:
    assert parsed('{"Topics":[{"NAME":"t","Paused":true,"more":[1],"CHANNELS":[{"Name":"c"}]}]}') == {
        "t": (True, {"c": False})
    }


def test_a_topic_that_stands_there_twice_is_one() -> None:
    text = '{"topics":[{"name":"t","channels":[{"name":"c"}]},{"name":"t","paused":true,"channels":[{"name":"d"}]}]}'
    assert parsed(text) == {"t": (True, {"c": False, "d": False})}


def test_what_is_ephemeral_or_has_no_name_is_skipped_with_a_word() -> None:
    metadata = parse_metadata(
        b'{"topics":[{"name":"e#ephemeral"},{"name":"bad name"},{},null,'
        b'{"name":"t","channels":[{"name":"c#ephemeral"},{"name":"../x"}]}]}'
    )
    assert list(metadata.topics) == ["t"]
    assert metadata.topics["t"].channels == {}
    assert metadata.remarks == [
        "skipping topic 'e#ephemeral': ephemeral",
        "skipping topic 'bad name': invalid name",
        "skipping topic '': invalid name",
        "skipping topic '': invalid name",
        "skipping topic 't', channel 'c#ephemeral': ephemeral",
        "skipping topic 't', channel '../x': invalid name",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{} x",
        '{"topics":{}}',
        '{"topics":["t"]}',
        '{"topics":[{"name":1}]}',
        '{"topics":[{"paused":1}]}',
    ],
)
def test_what_nsq_does_not_take_is_an_error(text: str) -> None:
    with pytest.raises(JsonError):
        parsed(text)
