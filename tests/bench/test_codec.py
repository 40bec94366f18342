"""The layers that `bench.codec` measures alone are those of nsqd's streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import codec
from bench.streams import MODES, STREAMS
from tests.support.certificates import make_certificates


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    made = make_certificates(tmp_path_factory.mktemp("certificates"))
    return made.certificate, made.key


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stream", STREAMS[1:])
def test_each_stream_passes_its_own_bytes(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, stream: str, mode: str
) -> None:
    monkeypatch.setattr(codec, "_ROUNDS", 3)
    assert codec.cost(stream, mode, *certificate) > 0.0
