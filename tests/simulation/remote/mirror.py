"""The files of a node as a store has them: a root, and slots with what was recorded since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from nsqcommon.remote.names import Run, slot_name
from nsqcommon.remote.root import FilePart, Root, decode_root, empty_root, encode_root, prove
from nsqcommon.remote.slot import Slot, SlotKind, decode_slot, encode_slot
from nsqd.remote.catalog import Catalog, FileToFold, FoldWriter
from nsqd.remote.recorder import Recorded, is_shipped
from nsqd.remote.slot_builder import Content, SlotBuilder
from tests.simulation.disk import DATA_PATH, SimulatedDisk

_FIRST = Run(0, "0" * 16)
_RUN = _FIRST.following("a" * 16)


def shipped_files(disk: SimulatedDisk) -> dict[str, bytes]:
    return {
        str(path.relative_to(DATA_PATH)): disk.peek(path)
        for path in disk.paths()
        if path.is_relative_to(DATA_PATH) and is_shipped(path)
    }


class Mirror:
    """Everything is encoded, decoded and proved, as it would be on the way to another machine."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._objects: dict[str, bytes] = {}
        writer = FoldWriter("node", _RUN)
        for path, data in sorted(files.items()):
            writer.add(FileToFold(path, (), 0, len(data), ()), data)
        root = writer.finish()
        self._objects |= {name: b"".join(buffers) for name, buffers in writer.full}
        self._root = encode_root(root)

    def files_after(self, changes: Sequence[Recorded], random: Random) -> tuple[dict[str, bytes], set[str]]:
        """Return the files and folders that another machine would fetch, if slots had these changes."""
        catalog = Catalog(self._decoded_root())
        builder = SlotBuilder(most=random.choice((5, 200, 5000)))
        run, number = _RUN, 0
        for change in changes:
            builder.add(change)
            if random.random() < 0.2:
                self._apply(catalog, run, number, builder.next_content())
                number += 1
            if random.random() < 0.02:
                run, number = run.following(run.writer), 0
                builder.begin_run()
                catalog.begin_run()
        while builder.waiting_bytes:
            self._apply(catalog, run, number, builder.next_content())
            number += 1
        files = {
            path: b"".join(self._bytes_of(it.part)[it.start : it.stop] for it in file.pieces)
            for path, file in catalog.files.items()
        }
        return files, catalog.folders

    def _decoded_root(self) -> Root:
        return decode_root(self._root) if self._objects else empty_root("node", _RUN)

    def _apply(self, catalog: Catalog, run: Run, number: int, content: Content) -> None:
        slot = Slot(SlotKind.DATA, "node", run, number, run.writer, 1, tuple(content.operations))
        data = b"".join(encode_slot(slot, content.body))
        self._objects[slot_name(run, number)] = data
        decoded, body = decode_slot(data)
        catalog.apply(decoded, body, len(data) - len(body))

    def _bytes_of(self, part: FilePart) -> bytes:
        if not part.object:
            return bytes(part.length)
        return prove(part, self._objects[part.object][part.offset : part.offset + part.length])


def fill(disk: SimulatedDisk, files: Mapping[str, bytes], folders: set[str]) -> None:
    """Put these files on an empty disk, durably. A root has no folders, so those of files are made as well."""
    wanted = {parent for path in (*files, *folders) for parent in Path(path).parents} | set(map(Path, folders))
    for folder in sorted(wanted - {Path()}):
        if not disk.exists(DATA_PATH / folder):
            disk.make_folder(DATA_PATH / folder)
            disk.sync_folder((DATA_PATH / folder).parent)
    for path, data in files.items():
        disk.create(DATA_PATH / path, data)
