"""Operations, repeated from slots, give the files that a file system would have."""

from __future__ import annotations

from random import Random

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import Run, fold_name, slot_name
from nsqcommon.remote.operations import (
    Commit,
    Cut,
    MakeFolder,
    OpenFile,
    Operation,
    Remove,
    Rename,
    Replace,
    UseBlob,
    Write,
)
from nsqcommon.remote.root import FilePart, Root, decode_root, empty_root, encode_root, prove
from nsqcommon.remote.slot import Slot, SlotKind, decode_slot, encode_slot
from nsqd.remote.catalog import (
    Catalog,
    CatalogFile,
    FoldWriter,
    Snapshot,
    mostly_dead,
    plan_fold,
    prove_range,
)

RUN = Run(7, "00000000000000aa")


class Objects:
    """A store with slots and folds, and the files of a node as a file system would have them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.catalog = Catalog(empty_root("node", RUN))
        self.run, self.number = RUN, 0

    def slot(self, *operations: Operation, body: bytes = b"") -> None:
        slot = Slot(SlotKind.DATA, "node", self.run, self.number, self.run.writer, 1, operations)
        name = slot_name(self.run, self.number)
        self.objects[name] = data = b"".join(encode_slot(slot, [body]))
        decoded, view = decode_slot(data)
        self.catalog.apply(decoded, view, len(data) - len(view))
        self.number += 1

    def content(self, file: CatalogFile) -> bytes:
        found = b"".join(self._bytes_of(piece.part)[piece.start : piece.stop] for piece in file.pieces)
        assert len(found) == file.size
        return found

    def _bytes_of(self, part: FilePart) -> bytes:
        if not part.object:
            return bytes(part.length)
        return prove(part, self.objects[part.object][part.offset : part.offset + part.length])

    def contents(self) -> dict[str, bytes]:
        return {path: self.content(file) for path, file in self.catalog.files.items()}

    def fold(self, dead: tuple[str, ...] = ()) -> Root:
        """Make a root, store it with its folds, and go on from it without any slot."""
        self.run, self.number = self.run.following(RUN.writer), 0
        writer = FoldWriter("node", self.run, self.catalog.sealed)
        for it in plan_fold(self.catalog.snapshot(), dead=dead):
            data = self.content(self.catalog.files[it.path])[it.start :]
            assert prove_range(it.pieces, data)
            writer.add(it, data)
        root = decode_root(encode_root(writer.finish()))
        self.objects |= {name: b"".join(buffers) for name, buffers in writer.full}
        self.objects = {name: data for name, data in self.objects.items() if not name.startswith("wal/")}
        self.catalog = Catalog(root)  # as a claimant would; an owner goes on with `rebase`
        return root

    def snapshot_and_root(self) -> tuple[Snapshot, Root]:
        """Make a root of the files as an owner does, while the catalog goes on."""
        snapshot = self.catalog.snapshot()
        writer = FoldWriter("node", RUN.following(RUN.writer))
        for it in plan_fold(snapshot):
            file = CatalogFile(list(snapshot[it.path][1]), it.size)
            writer.add(it, self.content(file)[it.start :])
        root = writer.finish()
        self.objects |= {name: b"".join(buffers) for name, buffers in writer.full}
        return snapshot, root


class Folder:
    """The same operations on names and bytearrays."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.open: dict[int, bytearray] = {}

    def write(self, number: int, offset: int, data: bytes) -> None:
        file = self.open[number]
        if data:
            file.extend(bytes(max(0, offset - len(file))))
            file[offset : offset + len(data)] = data

    def cut(self, number: int, size: int) -> None:
        file = self.open[number]
        del file[size:]
        file.extend(bytes(size - len(file)))

    def rename(self, source: str, target: str) -> None:
        if source in self.files:
            self.files[target] = self.files.pop(source)


PATHS = ("a", "b", "c")


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_repeated_operations_give_the_files_that_a_file_system_would_have(seed: int, steps: int) -> None:
    """Roots are made in between, so the bytes come from slots, folds and zeros."""
    random = Random(seed)
    objects, folder = Objects(), Folder()
    for _ in range(steps):
        path, number, place = random.choice(PATHS), random.randrange(2), random.randrange(12)
        data = random.randbytes(random.randrange(6))
        match random.choice(("open", "write", "write", "write", "cut", "rename", "remove", "replace", "fold")):
            case "open":
                objects.slot(OpenFile(number, path))
                folder.open[number] = folder.files.setdefault(path, bytearray())
            case "write" if number in folder.open and data:
                place = random.choice((place, len(folder.open[number])))
                objects.slot(Write(number, place, len(data)), body=data)
                folder.write(number, place, data)
            case "cut" if number in folder.open:
                objects.slot(Cut(number, place))
                folder.cut(number, place)
            case "rename":
                other = random.choice([it for it in PATHS if it != path])
                if path in folder.files:
                    objects.slot(Rename(path, other))
                    folder.rename(path, other)
            case "remove":
                objects.slot(Remove(path))
                folder.files.pop(path, None)
            case "replace":
                objects.slot(Replace(path, len(data)), body=data)
                folder.files[path] = bytearray(data)
            case "fold":
                objects.fold()
                folder.open.clear()
        assert objects.contents() == {path: bytes(data) for path, data in folder.files.items()}


def test_a_file_that_is_open_keeps_its_number_when_its_name_changes() -> None:
    objects = Objects()
    objects.slot(OpenFile(1, "a"), Write(1, 0, 3), body=b"one")
    objects.slot(Rename("a", "b"))
    objects.slot(Write(1, 3, 3), body=b"two")
    assert objects.contents() == {"b": b"onetwo"}


def test_a_folder_is_renamed_and_removed_with_its_files() -> None:
    objects = Objects()
    objects.slot(MakeFolder("t.x"), Replace("t.x/log.json", 2), Replace("t.xy", 2), body=b"{}{}")
    objects.slot(Rename("t.x", "x.1"))
    assert objects.contents() == {"x.1/log.json": b"{}", "t.xy": b"{}"}
    assert objects.catalog.folders == {"x.1"}
    objects.slot(Remove("x.1"))
    assert objects.contents() == {"t.xy": b"{}"}
    assert objects.catalog.folders == set()


def test_a_topic_that_was_created_again_has_former_logs() -> None:
    objects = Objects()
    log_json = "topics/t.x/log.json"
    objects.slot(Replace(log_json, 3), body=b"one")
    assert objects.catalog.former_logs == {}
    objects.slot(Rename("topics/t.x", "topics/x.1"), Remove("topics/x.1"), Replace(log_json, 3), body=b"two")
    objects.slot(Replace(log_json, 5), Replace("node.json", 2), Replace("node.json", 2), body=b"three{}{}")
    former = objects.catalog.former_logs
    assert [objects.content(it) for it in former[log_json]] == [b"one", b"two"]
    assert "node.json" not in former


def test_numbers_of_files_mean_nothing_in_the_next_run() -> None:
    objects = Objects()
    objects.slot(OpenFile(1, "a"))
    objects.catalog.begin_run()
    with pytest.raises(BadObject, match="hasn't opened"):
        objects.slot(Write(1, 0, 1), body=b"x")


def test_a_blob_is_a_file_and_named_as_an_object_that_somebody_needs() -> None:
    objects = Objects()
    objects.slot(UseBlob("carried.1", "blob/7/0001", 9, 5))
    assert objects.catalog.files["carried.1"].size == 9
    assert objects.catalog.objects == {"blob/7/0001"}


def test_a_commit_is_noted() -> None:
    objects = Objects()
    objects.slot(Commit(RUN))
    assert objects.catalog.committed == RUN


def test_a_root_keeps_the_parts_of_the_last_one_and_folds_what_was_appended() -> None:
    objects = Objects()
    objects.slot(OpenFile(1, "a"), Write(1, 0, 3), body=b"one")
    first = objects.fold()
    objects.slot(OpenFile(1, "a"), Write(1, 3, 2), body=b", ")
    second = objects.fold()
    assert second.files["a"].parts[0] == first.files["a"].parts[0]
    assert [it.length for it in second.files["a"].parts] == [3, 2]
    assert objects.contents() == {"a": b"one, "}


def test_a_file_that_grows_slowly_has_few_parts_and_is_seldom_written_again() -> None:
    objects = Objects()
    written = 0
    for number in range(1000):
        objects.slot(OpenFile(1, "a"), Write(1, number, 1), body=b"x")
        written += sum(it.size - it.start for it in plan_fold(objects.catalog.snapshot()))
        assert len(objects.fold().files["a"].parts) <= 10
    assert written <= 1000 * 10, "log2(1000) times each byte"


def test_parts_that_are_large_enough_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqd.remote.catalog.FULL_PART", 3)
    objects = Objects()
    objects.slot(OpenFile(1, "a"), Write(1, 0, 4), body=b"four")
    first = objects.fold().files["a"].parts
    objects.slot(OpenFile(1, "a"), Write(1, 4, 9), body=b"nine more")
    assert objects.fold().files["a"].parts[:1] == first


def test_nothing_is_written_of_a_file_that_has_not_changed() -> None:
    objects = Objects()
    objects.slot(OpenFile(1, "a"), Write(1, 0, 3), body=b"one")
    objects.fold()
    objects.slot(OpenFile(1, "a"), Write(1, 3, 1), body=b"2")
    objects.fold()
    assert [it.size - it.start for it in plan_fold(objects.catalog.snapshot())] == [0]


def test_a_fold_of_which_little_is_needed_is_written_again() -> None:
    objects = Objects()
    objects.slot(Replace("a", 9), Replace("b", 3), body=b"aaaaaaaaabbb")
    objects.fold()
    sizes = {name: len(data) for name, data in objects.objects.items()}
    assert mostly_dead(objects.catalog.snapshot(), sizes) == []
    objects.slot(Remove("a"))
    (dead,) = mostly_dead(objects.catalog.snapshot(), sizes)
    assert dead == fold_name(RUN.following(RUN.writer), 1)
    assert dead not in objects.fold(dead=(dead,)).objects()
    assert objects.contents() == {"b": b"bbb"}


def test_a_flipped_bit_on_the_disk_is_not_folded() -> None:
    objects = Objects()
    objects.slot(OpenFile(1, "a"), Write(1, 0, 3), Write(1, 3, 3), body=b"onetwo")
    (plan,) = plan_fold(objects.catalog.snapshot())
    assert prove_range(plan.pieces, b"onetwo")
    for wrong in (b"onetwp", b"pnetwo", b"onetw", b"onetwo!"):
        assert not prove_range(plan.pieces, wrong)


def test_an_owner_goes_on_from_its_new_root_and_keeps_what_came_since() -> None:
    objects = Objects()
    objects.slot(OpenFile(1, "a"), OpenFile(2, "b"), Write(1, 0, 3), Write(2, 0, 3), body=b"onetwo")
    snapshot, root = objects.snapshot_and_root()
    objects.slot(Write(1, 3, 1), Cut(2, 1), UseBlob("c", "blob/7/0001", 9, 5), body=b"!")
    objects.slot(Remove("c"), UseBlob("c", "blob/7/0001", 9, 5), Remove("b.1"), Replace("d", 1), Remove("d"), body=b"d")
    objects.slot(Replace("t.e/log.json", 1), Remove("t.e"), body=b"e")
    catalog = objects.catalog
    catalog.rebase(snapshot, root)
    assert not catalog.removed, "an owner needs no list of all that it has ever removed"
    assert not catalog.former_logs
    assert catalog.objects == {*root.objects(), "blob/7/0001"}
    assert [it.part.object for it in catalog.files["a"].pieces] == [*root.objects(), slot_name(RUN, 1)]
    assert [it.part.object for it in catalog.files["b"].pieces] == [*root.objects()]
    assert objects.content(catalog.files["a"]) == b"one!"
    assert objects.content(catalog.files["b"]) == b"t"


def test_what_is_left_of_a_file_that_was_written_over_since_the_root_needs_no_slot_from_before() -> None:
    objects = Objects()
    objects.slot(OpenFile(1, "a"), Write(1, 0, 5), Write(1, 5, 5), Write(1, 10, 5), body=b"onetwothreefour")
    objects.slot(Write(1, 1, 2), body=b"--")
    snapshot, root = objects.snapshot_and_root()
    objects.slot(Write(1, 6, 2), Cut(1, 13), Write(1, 13, 1), body=b"**!")
    catalog = objects.catalog
    catalog.rebase(snapshot, root)
    assert {it.part.object for it in catalog.files["a"].pieces} == {*root.objects(), slot_name(RUN, 2)}
    assert objects.content(catalog.files["a"]) == b"o--two**reefo!"


def test_bytes_that_are_in_no_slot_are_folded_and_proved_as_those_of_slots_are() -> None:
    objects = Objects()
    objects.slot(OpenFile(1, "a"), Write(1, 0, 3), body=b"one")
    objects.fold()
    objects.catalog.apply_unsent(
        (OpenFile(1, "a"), Write(1, 3, 2), Replace("b", 5)), (0, crc32c(b", "), crc32c(b"three"))
    )
    plan, other = plan_fold(objects.catalog.snapshot())
    assert (plan.start, plan.size, other.start, other.size) == (3, 5, 0, 5)
    assert prove_range(plan.pieces, b", ")
    assert not prove_range(plan.pieces, b",-")
    assert prove_range(other.pieces, b"three")
