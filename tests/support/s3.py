"""An S3 server for tests: moto's, in a process, with a bucket. It supports conditional puts, and accepts any keys.

Only `filesystem`, and what uses it, needs pyarrow.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from urllib.request import Request, urlopen
from uuid import uuid4

from bench.ports import HOST, take_port
from tests.support.process import ROOT, eventually

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

BUCKET: Final = "lake"
SECRET: Final = "the-secret-of-the-tests"


class S3Server:
    def __init__(self, folder: Path) -> None:
        self._log = folder / "s3.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"{HOST}:{take_port()}"
        self.endpoint = f"http://{self.address}"

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.moto_server", self.address.rpartition(":")[2]],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        eventually(self._answers, timeout=60)
        with urlopen(Request(f"{self.endpoint}/{BUCKET}", method="PUT"), timeout=60):
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        host, _, port = self.address.rpartition(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    @property
    def filesystem(self) -> S3FileSystem:
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key="tests",
            secret_key=SECRET,
            endpoint_override=self.address,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    @property
    def storage(self) -> dict[str, str]:
        """Return the options with which jobs and tables reach the server."""
        return {"storage.endpoint": self.endpoint, "storage.accessKey": "tests", "storage.secretKey": SECRET}

    @property
    def environment(self) -> dict[str, str]:
        """Return the same as environment variables for a process."""
        keys = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
        return {"AWS_ENDPOINT_URL": self.endpoint, **keys}

    def new_uri(self, name: str = "table") -> str:
        return f"s3://{BUCKET}/{name}-{uuid4().hex[:8]}"

    def files(self, uri: str) -> list[str]:
        """Return the paths below a prefix, relative to it."""
        from pyarrow.fs import FileSelector, FileType

        root = uri.partition("://")[2]
        found = self.filesystem.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
        return sorted(it.path.removeprefix(f"{root}/") for it in found if it.type is FileType.File)
