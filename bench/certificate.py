"""A certificate for the benchmarks of TLS."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.work import Failed


@dataclass(frozen=True, slots=True)
class Certificate:
    key: Path
    certificate: Path

    @classmethod
    def make(cls, folder: Path) -> Self:
        if shutil.which("openssl") is None:
            raise Failed("the certificate needs openssl")
        made = cls(folder / "key.pem", folder / "cert.pem")
        new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        subprocess.run(
            ["openssl", *new, "-subj", "/CN=localhost", "-keyout", str(made.key), "-out", str(made.certificate)],
            check=True,
            capture_output=True,
            timeout=60,
        )
        return made
