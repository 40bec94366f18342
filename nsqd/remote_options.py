"""nsqd's options for its copy in an object store. `Options` (options.py) inherits them.

nsqd --remote=s3://bucket/nsq --remote-name=orders-1 --ack=remote
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Final

from nsqcommon.options import (
    DURATION,
    MILLISECOND,
    SECOND,
    Nanoseconds,
    computed_option,
    option,
)
from nsqcommon.startup import StartupError
from nsqd.ack_option import Ack
from nsqd.log_options import SIZE, LogOptions

RATE: Final = 100_000_000  # bytes a second


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions(LogOptions):
    remote: str = option(
        "",
        "object store that gets a copy of everything written, so that another machine can go on: s3://BUCKET/PREFIX, "
        "gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///SHARED/FOLDER; empty: none",
    )
    remote_name: str = computed_option(
        platform.node,
        "the hostname",
        "name of this node in the store; an nsqd elsewhere with the same name goes on with its messages",
    )
    remote_option: tuple[str, ...] = option(
        (),
        "setting of the store as NAME=VALUE, for example endpoint=http://127.0.0.1:9000 or region=eu-central-1",
        toml="remote_options",
    )
    remote_interval: Nanoseconds = option(
        50 * MILLISECOND,
        "least time between two objects while a publisher waits for the store; 2ms suits a store in the same network",
        kind=DURATION,
        at_least=1,
    )
    remote_delay: Nanoseconds = option(
        SECOND,
        "least time between two objects while no publisher waits for the store",
        kind=DURATION,
        at_least=1,
    )
    remote_timeout: Nanoseconds = option(
        10 * SECOND,
        "how long the store may give no answer before publishes that wait for it get an error",
        kind=DURATION,
        at_least=1,
    )
    remote_buffer: int = option(
        64 << 20,
        "bytes to keep in memory until the store gets them; from half of it, publishes that wait for the store are held "
        "back, and what doesn't fit is read from the disk later",
        kind=SIZE,
        at_least=1,
    )
    remote_rate: int = option(
        RATE,
        "bytes a second for what no OK waits for: the first copy of a data path, roots, and what a start fetches from the "
        "store; 0: no limit",
        kind=SIZE,
        at_least=0,
    )
    remote_strict: bool = option(
        False,
        "refuse publishes to all topics on disk, and not only to those that wait for the store, when it has given no answer "
        "for --remote-timeout; so a node that is cut off accepts nothing more once that has passed",
    )

    standby: bool = option(
        False,
        "if another process owns the name of --remote-name, wait until it is gone and then take over; also after another "
        "process has taken over from this one",
    )
    standby_after: Nanoseconds = option(
        10 * SECOND,
        "with --standby: how long the owner must be gone, which is to say that it doesn't answer on HTTP and the store gets "
        "nothing new from it, or that it can't reach the store by its own account",
        kind=DURATION,
        at_least=1,
    )

    def check_remote(self) -> None:
        """Raise StartupError if a publisher could wait for a store that isn't there."""
        if not self.remote and Ack.REMOTE in (self.ack, *self.topic_acks.values()):
            raise StartupError("--ack=remote needs --remote, which names the store")
        if self.remote_strict and not self.remote:
            raise StartupError("--remote-strict needs --remote, which names the store")
        if self.standby and not self.remote:
            raise StartupError("--standby needs --remote, which names the store")
