"""How far a replay has come, in a file that is whole at every moment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from nsqtools.command import ToolFailed


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replay is in one node's log: [next, end) is still to come."""

    log_id: str
    next: int
    end: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    topic: str
    destination_topic: str
    published: int
    places: dict[str, Place]  # by node

    def save(self, path: Path) -> None:
        """Raises ToolFailed."""
        temporary = path.with_name(path.name + ".new")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(asdict(self), file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise ToolFailed(f"cannot write checkpoint {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """None where there is no such file. Raises ToolFailed."""
        try:
            document: dict[str, Any] = json.loads(path.read_bytes())
            places = {node: Place(**place) for node, place in document.pop("places").items()}
            return cls(**document, places=places)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ToolFailed(f"cannot read checkpoint {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ToolFailed(f"{path} is no checkpoint of nsq_replay") from error
