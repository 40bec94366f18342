"""`nsqadmin decoders check`: a file is checked, and a body is decoded, without a running nsqadmin."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest

from nsqadmin.decoding.cli import main
from nsqcommon.file_check import INVALID, NOT_READ, VALID
from tests.nsqadmin.decoding.decoders_files import FILE, write_decoders
from tests.support import shop


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write_decoders(tmp_path)


def check(path: str, *arguments: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    return main(["check", path, *arguments], out=out, err=err), out.getvalue(), err.getvalue()


def test_a_valid_file(path: str) -> None:
    assert check(path) == (VALID, f"{path} is valid; entries: 8\n", "")
    assert check(path, "--topic=orders") == (VALID, "topic orders\n  line 1: Protobuf shop.Order\n", "")
    assert check(path, "--topic=plain")[1] == "topic plain\n  line 37: bodies stay as they are\n"
    assert "no entry" in check(path, "--topic=other")[1]


def test_all_mistakes_are_printed_with_their_lines(path: str) -> None:
    Path(path).write_text(FILE.replace('"msgpack"\n\n', '"msgpak"\n\n').replace("order.avsc", "gone.avsc"))
    assert check(path)[0] == INVALID
    assert check(path)[2].startswith(f"{path}:29: decode: unknown step 'msgpak'")
    Path(path).write_text(FILE.replace("order.avsc", "gone.avsc"))
    assert check(path) == (
        INVALID,
        "",
        f"{path}:13: schema: gone.avsc: no such file or directory\n"
        f"{path}:18: schemas: gone.avsc: no such file or directory\n",
    )
    assert check(path + "x") == (NOT_READ, "", f"{path}x: no such file or directory\n")


def test_a_body_is_decoded_or_says_why_not(path: str, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(shop.protobuf_order(5))
    status, out, err = check(path, "--topic=orders", f"--body={body}")
    assert (status, err, json.loads(out)["customer"]["country"]) == (VALID, "", "DE")
    body.write_bytes(b"\x08")
    assert check(path, "--topic=orders", f"--body={body}") == (
        INVALID,
        "",
        f"{body}: Protobuf shop.Order: field 1 (id) ends after the body's end, at byte 1\n",
    )
    assert check(path, "--topic=other", f"--body={body}")[0] == INVALID
    assert check(path, "--topic=orders", "--body=/no/such")[0] == NOT_READ
