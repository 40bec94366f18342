from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsqcommon.startup import StartupError
from nsqd.remote.location import parse_location
from nsqd.remote.stores.folder import FolderStore
from nsqd.remote.stores.opening import open_store
from tests.support.process import ROOT


def test_a_folder_is_opened_without_a_library(tmp_path: Path) -> None:
    assert isinstance(open_store(parse_location(tmp_path.as_uri()), {}), FolderStore)


def test_a_folder_has_no_options(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="--remote-option=endpoint: a folder has no options"):
        open_store(parse_location(tmp_path.as_uri()), {"endpoint": "x"})


def test_without_the_library_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nsqd.remote.stores.obstore", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        StartupError, match=r"^--remote=s3://lake needs .*: pip install '\.\[remote\]', in a checkout of nsq-suite$"
    ):
        open_store(parse_location("s3://lake"), {})


def test_nsqd_loads_no_library_of_clouds_unless_one_is_used() -> None:
    code = "import sys, nsqd.workers.run, nsqd.remote.stores.opening; sys.exit('obstore' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)
