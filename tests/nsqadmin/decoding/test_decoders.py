"""Which decoder a message gets, and a file that changes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from nsqadmin.decoding.decoder import Decoder, Undecodable
from nsqadmin.decoding.decoders import ByContentType, Decoders, read_rules
from nsqcommon.startup import StartupError
from tests.nsqadmin.decoding.decoders_files import FILE, write_decoders
from tests.support.jumping import run_with_threads

MSGPACK = {"content-type": "application/msgpack"}
PROTOBUF = {"content-type": "application/x-protobuf"}


def name_of(choice: Decoder | ByContentType | None) -> object:
    return choice.name if isinstance(choice, Decoder) else choice and choice.steps


def test_a_rule_decides_and_without_one_the_content_type(tmp_path: Path) -> None:
    decoders = Decoders(write_decoders(tmp_path))
    assert name_of(decoders.choose("orders", {})) == "Protobuf shop.Order"
    assert name_of(decoders.choose("orders", MSGPACK)) == "Protobuf shop.Order"
    assert name_of(decoders.choose("plain", MSGPACK)) is None
    assert name_of(decoders.choose("other", MSGPACK)) == ("msgpack",)
    assert name_of(decoders.choose("other", {})) is None
    assert decoders.why_not("other", PROTOBUF).startswith("Protobuf needs a schema")
    assert decoders.why_not("plain", PROTOBUF) == ""
    assert name_of(Decoders().choose("orders", MSGPACK)) == ("msgpack",)


def test_a_decoder_by_content_type_is_built_when_it_is_needed_or_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoders = Decoders()
    choice = decoders.choose("t", MSGPACK)
    assert choice is not None
    assert decoders.built(choice).read(msgspec.msgpack.encode([1])) == b"[1]"
    monkeypatch.delitem(sys.modules, "nsqcommon.bodies.self_describing")
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(Undecodable, match="MessagePack needs msgspec, which is not installed; it comes with: pip"):
        Decoders().built(choice)


def test_a_wrong_file_stops_the_start(tmp_path: Path) -> None:
    path = write_decoders(tmp_path, FILE.replace('decode = "msgpack"', 'decode = "msgpak"'))
    with pytest.raises(StartupError, match=f"failed to read decoders file {path} - line 29: decode: unknown step"):
        Decoders(path)


def rename(schema: Path, old: str, new: str) -> None:
    schema.write_text(schema.read_text().replace(old, new))


def test_a_changed_file_or_schema_counts_from_then_on(tmp_path: Path) -> None:
    path = write_decoders(tmp_path)

    async def main() -> None:
        decoders = Decoders(path)
        assert decoders.file is not None
        assert name_of(decoders.choose("avro", {})) == "Avro shop.order"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(decoders.file.follow)
            schema = tmp_path / "order.avsc"
            rename(schema, "shop.order", "shop.purchase")
            await trio.sleep(3)
            assert name_of(decoders.choose("avro", {})) == "Avro shop.purchase"
            write_decoders(tmp_path, "[[decoder]]")
            await trio.sleep(3)
            assert name_of(decoders.choose("avro", {})) == "Avro shop.purchase"
            assert decoders.file.error.startswith("line 1: decode: is missing")
            write_decoders(tmp_path, '[[decoder]]\ntopic = "avro"\ndecode = "json"')
            await trio.sleep(3)
            assert name_of(decoders.choose("avro", {})) == "JSON"
            nursery.cancel_scope.cancel()

    run_with_threads(main)


def test_a_file_that_changes_while_a_thread_asks_for_rules_counts_from_then_on(tmp_path: Path) -> None:
    decoders = Decoders(write_decoders(tmp_path))
    assert decoders.file is not None
    old, new = decoders.file.now, read_rules(str(tmp_path / FILE), '[[decoder]]\ntopic = "avro"\ndecode = "json"')

    def change(topic: str) -> bool:
        assert decoders.file is not None
        decoders.file.now = new
        decoders.choose("other", {})
        return False

    first = old.rules[0]
    decoders.file.now = replace(old, rules=(replace(first, rule=replace(first.rule, is_of=change)), *old.rules[1:]))
    decoders.choose("avro", {})
    assert name_of(decoders.choose("avro", {})) == "JSON"
