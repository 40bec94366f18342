"""Which boot it is, as Linux and macOS tell it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsqcommon import boot
from nsqcommon.boot import boot_id

UUID = "6D2A4A2E-0000-4000-8000-0123456789AB"


def library(status: int) -> SimpleNamespace:
    def sysctlbyname(name: bytes, text: Any, size: Any, new: None, new_size: Any) -> int:
        assert name == b"kern.bootsessionuuid"
        text.value = UUID.encode()
        return status

    return SimpleNamespace(sysctlbyname=sysctlbyname)


def test_linux_names_it_by_a_uuid() -> None:
    assert re.fullmatch(r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}", boot_id())
    assert boot_id() == boot_id()


@pytest.mark.parametrize(("found", "name"), [(library(0), UUID), (library(-1), ""), (SimpleNamespace(), "")])
def test_without_proc_the_kernel_of_macos_is_asked(
    found: SimpleNamespace, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(boot, "_LINUX", tmp_path / "missing")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: found)
    assert boot_id() == name
