"""The progress of a replay, in a file that is always complete."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from nsqcommon.disk_sync import sync_all
from nsqtools.command import ToolFailed


@dataclass(frozen=True, slots=True)
class RemainingRange:
    """The remaining part of one node's log: [next, end)."""

    log_id: str
    next: int
    end: int


@dataclass(frozen=True, slots=True)
class ReplayCheckpoint:
    """The progress of a replay."""

    topic: str
    destination_topic: str
    published: int
    places: dict[str, RemainingRange]  # by node id

    def save(self, path: Path) -> None:
        """Write the file, replacing it atomically. Raise ToolFailed."""
        temporary = path.with_name(path.name + ".new")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(asdict(self), file, indent=1)
                file.write("\n")
                file.flush()
                sync_all(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise ToolFailed(f"cannot write checkpoint {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Read the file. Return None if there is none. Raise ToolFailed."""
        try:
            document: dict[str, Any] = json.loads(path.read_bytes())
            places = {node: RemainingRange(**place) for node, place in document.pop("places").items()}
            return cls(**document, places=places)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ToolFailed(f"cannot read checkpoint {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ToolFailed(f"{path} is not a checkpoint of nsq_replay") from error
