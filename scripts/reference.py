"""The generated pages of docs/reference: `python -m scripts.reference` writes them, a test compares them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.options import reference_page
from nsqd.options import Options

ROOT: Final = Path(__file__).resolve().parent.parent

ABOUT_NSQD: Final = """\
Every flag may be written with one dash or two, as `--flag=value` or `--flag value`; a flag of type bool only as `--flag` or `--flag=value`.
What is not a flag ends the flags: NSQ reads them in the same way.

A flag beats an environment variable, that beats the TOML file named by `--config`, and that beats the default.
The variable is `NSQD_` and the flag in capitals, with `_` for `-`: `NSQD_TCP_ADDRESS`; a list is written with commas.
The key in the TOML file and under `/config/` is the flag with `_` for `-`, unless the table says otherwise; keys that nobody knows are named in a warning.

A duration is written as Go writes it: `300ms`, `1.5h`, `1m30s500ms`. In the TOML file an integer is milliseconds.
Whole numbers may be written as `0x`, `0o` or `0b`, and with `_` between the digits.
"""


def pages() -> Mapping[Path, str]:
    return {Path("docs/reference/nsqd-options.md"): reference_page(Options, "nsqd", about=ABOUT_NSQD)}


def main() -> None:
    for path, text in pages().items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
