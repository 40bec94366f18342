"""Run mypy on everything that is installed: `python -m scripts.type_check`.

Without the extra `spark` the packages for Spark cannot be checked, because mypy would take everything of Spark's for
`Any`. They are left out then, and one line says so.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]
_NEEDED: Final = ("pyspark", "numpy", "msgspec")
_PACKAGES: Final = ("nsqpipe", "pyspark_nsq", "pyspark_nsqtable")
_OF_SPARK: Final = (
    *("bench.spark", "nsqcommon.bodies", "tests.nsqcommon.bodies", "tests.spark"),
    *_PACKAGES,
    *(f"tests.{package}" for package in _PACKAGES),
)


def main() -> int:
    config = _ROOT / "pyproject.toml"
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if not missing:
        return _mypy(config)
    print(
        f"mypy: not checked, as {', '.join(missing)} is not installed: {', '.join(_OF_SPARK)} (scripts/setup dev,spark)"
    )
    with TemporaryDirectory() as folder:
        partly = Path(folder) / "mypy.toml"
        partly.write_text(config.read_text(encoding="utf-8") + without(_OF_SPARK), encoding="utf-8")
        return _mypy(partly)


def without(packages: tuple[str, ...]) -> str:
    """Return lines for pyproject.toml by which mypy reports no error in these packages."""
    patterns = ", ".join(f'"{package}.*"' for package in packages)
    return f"\n[[tool.mypy.overrides]]\nmodule = [{patterns}]\nignore_errors = true\n"


def _mypy(config: Path) -> int:
    return subprocess.run([sys.executable, "-m", "mypy", f"--config-file={config}"], cwd=_ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
