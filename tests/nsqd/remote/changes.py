"""Random changes of a folder, as they are recorded."""

from __future__ import annotations

from random import Random

from nsqd.remote.recorder import Recorded, RecordedFiles
from tests.simulation.disk import DATA_PATH, SimulatedDisk
from tests.simulation.remote.mirror import shipped_files


def random_changes(random: Random) -> tuple[list[Recorded], dict[str, bytes]]:
    """Return what was recorded, and the files that are there in the end."""
    disk = SimulatedDisk(random=random)
    disk.most_per_write = random.choice((None, 2))
    changes: list[Recorded] = []
    files = RecordedFiles(disk, DATA_PATH, changes.append)
    opened: list[int] = []
    for _ in range(random.randrange(30)):
        path = DATA_PATH / random.choice(("a.log", "b.log", "node.json"))
        data = random.randbytes(random.randrange(1, 6))
        match random.choice(("open", "write", "write", "cut", "close", "replace", "rename", "unlink")):
            case "open" if not path.name.endswith(".json"):
                opened.append(files.open_to_write(path))
            case "write" if opened:
                files.write_fully(random.choice(opened), [data, data], random.randrange(8))
            case "cut" if opened:
                files.truncate(random.choice(opened), random.randrange(8))
            case "close" if opened:
                files.close(opened.pop())
            case "replace":
                files.replace(DATA_PATH / "node.json", data)
            case "rename" if disk.exists(path):
                files.rename(path, DATA_PATH / "c.log")
            case "unlink" if disk.exists(path):
                files.unlink(path)
    return changes, shipped_files(disk)
