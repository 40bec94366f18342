"""Decoders are built from rules; what is wrong with a file that they name has the line of its entry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsqadmin.decoding.building import BuiltRule, build_rules
from nsqadmin.decoding.rules import parse_rules
from nsqcommon.entries_file import BadEntries
from tests.nsqadmin.decoding.decoders_files import FILE, write_decoders
from tests.support.process import ROOT


def built(folder: Path, text: str = FILE) -> tuple[BuiltRule, ...]:
    write_decoders(folder, text)
    return build_rules(parse_rules(text), str(folder))[0]


def test_each_decoder_is_named_by_its_steps(tmp_path: Path) -> None:
    assert {it.rule.topic: it.decoder.name if it.decoder else None for it in built(tmp_path)} == {
        "orders": "Protobuf shop.Order",
        "packed": "gzip, Protobuf shop.Order",
        "avro": "Avro shop.order",
        "numbered": "Confluent, Avro shop.order",
        "framed": "Confluent, Protobuf shop.Order",
        "msgpack": "MessagePack",
        "text": "zstd",
        "plain": None,
    }


def test_the_files_are_known_with_their_status(tmp_path: Path) -> None:
    write_decoders(tmp_path)
    _, files = build_rules(parse_rules(FILE), str(tmp_path))
    assert {Path(path).name for path in files} == {"shop.desc", "order.avsc"}
    assert all(all(status) for status in files.values())


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ('"shop.desc"', '"no.desc"', "line 1: descriptors: no.desc: no such file or directory; line 7: desc"),
        ('"shop.desc"', '"order.avsc"', "line 1: descriptors: order.avsc is not a descriptor set, as protoc"),
        ('"shop.Order"', '"shop.Odrer"', "line 1: descriptors: shop.desc has no message shop.Odrer; there are: "),
        ('schema = "order.avsc"', 'schema = "shop.desc"', "line 13: schema: shop.desc is not UTF-8"),
        ('schema = "order.avsc"', 'schema = "decoders.toml"', "line 13: schema: decoders.toml is not an Avro schema"),
        ('{ 17 = "order.avsc" }', '{ 17 = "." }', "line 18: schemas: .: is a directory"),
    ],
)
def test_a_file_that_cannot_be_used_has_the_line_and_the_key(tmp_path: Path, old: str, new: str, mistake: str) -> None:
    with pytest.raises(BadEntries) as refused:
        built(tmp_path, FILE.replace(old, new))
    assert str(refused.value).startswith(mistake)


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fastavro", "nsqcommon.bodies.avro"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(BadEntries) as refused:
        built(tmp_path)
    (first, _) = refused.value.mistakes
    assert str(first).startswith(
        "line 13: decode: Avro needs fastavro, which is not installed; it comes with: pip inst"
    )
    assert "admin-decoders" in str(first)


def test_an_nsqadmin_without_such_bodies_loads_none_of_the_libraries() -> None:
    wanted = "('fastavro', 'google.protobuf', 'msgspec', 'cramjam')"
    command = f"import sys, nsqadmin.messages.looking; print([it for it in {wanted} if it in sys.modules])"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
