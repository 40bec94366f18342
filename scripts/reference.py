"""The generated pages of docs/reference: `python -m scripts.reference` writes them, a test compares them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.options import reference_page
from nsqadmin.options import Options as AdminOptions
from nsqd.options import Options
from nsqlookupd.options import Options as LookupOptions

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

ABOUT_NSQLOOKUPD: Final = """\
Flags, environment (`NSQLOOKUPD_` and the flag in capitals, with `_` for `-`), TOML file and durations are read [as nsqd reads them](nsqd-options.md).

nsqlookupd keeps nothing on disk: after a restart every nsqd registers again.
`/lookup` can wait for a change, which saves consumers their polling: [how and why](../decisions/0002-lookup-that-waits.md).

Deliberately unlike NSQ: lists are sorted; ephemeral names go when the last nsqd that had them disconnects; an IPv6 node can be tombstoned with or without brackets; `POST /topic/delete?topic=*` is refused, and `*` is no wildcard elsewhere; a negative size before an IDENTIFY's body is answered and does not end the process; that body is at most 1 MiB, a command's line at most 64 KiB; `/debug` shows 0 for what was never tombstoned; there is no `/debug/pprof`.
"""

ABOUT_NSQADMIN: Final = """\
Flags, environment (`NSQADMIN_` and the flag in capitals, with `_` for `-`), TOML file and durations are read [as nsqd reads them](nsqd-options.md).

Either `--lookupd-http-address` or `--nsqd-http-address` is needed, or `--snapshot`.
A name in them need not be resolvable at the start: it may appear later.
"""


def pages() -> Mapping[Path, str]:
    return {
        Path("docs/reference/nsqd-options.md"): reference_page(Options, "nsqd", about=ABOUT_NSQD),
        Path("docs/reference/nsqlookupd-options.md"): reference_page(
            LookupOptions, "nsqlookupd", about=ABOUT_NSQLOOKUPD
        ),
        Path("docs/reference/nsqadmin-options.md"): reference_page(AdminOptions, "nsqadmin", about=ABOUT_NSQADMIN),
    }


def main() -> None:
    for path, text in pages().items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
