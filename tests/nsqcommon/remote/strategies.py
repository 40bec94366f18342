"""Anything that a node may keep in a store."""

from __future__ import annotations

from hypothesis import strategies as st

from nsqcommon.remote.names import Run
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
    body_length,
)
from nsqcommon.remote.root import FileEntry, FilePart, Root, SealedSegment
from nsqcommon.remote.slot import Claimant, Slot, SlotKind

NUMBERS = st.integers(0, 2**63)
LENGTHS = st.integers(0, 40)
CRCS = st.integers(0, 2**32 - 1)
PATHS = st.text(max_size=12)
RUNS = st.builds(Run, st.integers(0, 10**12), st.integers(0, 2**64 - 1).map(lambda it: f"{it:016x}"))
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(OpenFile, NUMBERS, PATHS),
    st.builds(Write, NUMBERS, NUMBERS, LENGTHS),
    st.builds(Cut, NUMBERS, NUMBERS),
    st.builds(Rename, PATHS, PATHS),
    st.builds(Remove, PATHS),
    st.builds(MakeFolder, PATHS),
    st.builds(Replace, PATHS, LENGTHS),
    st.builds(UseBlob, PATHS, PATHS, NUMBERS, CRCS),
    st.builds(Commit, RUNS),
)
CLAIMANTS = st.builds(Claimant, st.text(max_size=9), NUMBERS, st.text(max_size=9), st.text(max_size=9))


@st.composite
def slots(draw: st.DrawFn) -> tuple[Slot, list[bytes]]:
    kind = draw(st.sampled_from(SlotKind))
    run, number, writer = draw(RUNS), draw(NUMBERS), draw(RUNS).writer
    if kind is not SlotKind.DATA:
        claimant = draw(CLAIMANTS) if kind is SlotKind.FENCE else None
        return Slot(kind, "node", run, number, writer, 1, (), draw(RUNS), draw(st.booleans()), claimant), []
    operations = tuple(draw(st.lists(OPERATIONS, max_size=5)))
    body = [bytes(draw(st.binary(min_size=it, max_size=it))) for it in map(body_length, operations)]
    return Slot(kind, "node", run, number, writer, draw(NUMBERS), operations), body


@st.composite
def file_entries(draw: st.DrawFn) -> FileEntry:
    parts = tuple(draw(st.lists(st.builds(FilePart, PATHS, NUMBERS, LENGTHS, CRCS), max_size=3)))
    return FileEntry(sum(it.length for it in parts), parts)


SEGMENTS = st.builds(
    SealedSegment, PATHS, PATHS, NUMBERS, NUMBERS, PATHS, NUMBERS, CRCS, NUMBERS, NUMBERS, st.binary(max_size=44)
)
ROOTS = st.builds(
    Root,
    st.just("node"),
    RUNS,
    st.dictionaries(PATHS, file_entries(), max_size=5),
    st.lists(SEGMENTS, max_size=3).map(tuple),
)
