"""Go's metadata file `nsqd.dat`: its topics and channels, and which of them are paused."""

from __future__ import annotations

from typing import NamedTuple

from nsqcommon.nsq_json import Fields, read
from nsqcommon.wire.names import is_ephemeral, is_valid_name


class GoTopic:
    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.channels: dict[str, bool] = {}  # by name: whether the channel is paused


class Metadata(NamedTuple):
    topics: dict[str, GoTopic]
    remarks: list[str]  # about skipped topics and channels


def parse_metadata(data: bytes) -> Metadata:
    """Parse `nsqd.dat`. Raises JsonError if NSQ would refuse to start with it too."""
    topics: dict[str, GoTopic] = {}
    remarks: list[str] = []
    for item in Fields(read(data)).items("topics"):
        fields = Fields(item)
        name, paused = fields.text("name"), fields.flag("paused")
        channels = [Fields(channel) for channel in fields.items("channels")]
        if not _is_lasting("topic", name, remarks):
            continue
        topic = topics.setdefault(name, GoTopic(name))
        topic.paused |= paused
        for channel in channels:
            name, paused = channel.text("name"), channel.flag("paused")
            if _is_lasting(f"topic {topic.name!r}, channel", name, remarks):
                topic.channels[name] = topic.channels.get(name, False) or paused
    return Metadata(topics, remarks)


def _is_lasting(kind: str, name: str, remarks: list[str]) -> bool:
    if not is_valid_name(name):
        remarks.append(f"skipping {kind} {name!r}: invalid name")
    elif is_ephemeral(name):
        remarks.append(f"skipping {kind} {name!r}: ephemeral")
    else:
        return True
    return False
