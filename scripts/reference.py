"""The generated pages of docs/reference: `python -m scripts.reference` writes them, a test compares them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nsqadmin.options import Options as AdminOptions
from nsqclient import Config
from nsqclient.core.config import OPTIONS as CLIENT_OPTIONS
from nsqd.options import Options
from nsqlookupd.options import Options as LookupOptions
from nsqtools import (
    nsq_bench,
    nsq_dead,
    nsq_deferred,
    nsq_replay,
    nsq_stat,
    nsq_tail,
    nsq_to_file,
    nsq_to_http,
    nsq_to_nsq,
    outbox_to_nsq,
    to_nsq,
)
from scripts import nsqadmin_openapi, nsqadmin_reference, nsqpipe_reference
from scripts.option_pages import reference_page, reference_table

ROOT: Final = Path(__file__).resolve().parent.parent

ABOUT_NSQD: Final = """\
Every flag may be written with one dash or two, as `--flag=value` or `--flag value`; a flag of type bool only as `--flag` or `--flag=value`.
The first argument that is not a flag ends the flags, as in NSQ.

If a flag is absent, its value comes from the environment variable, then from the TOML file named by `--config`, then from the default.
The variable is `NSQD_` and the flag in capitals, with `_` for `-`: `NSQD_TCP_ADDRESS`; a list is written with commas.
The key in the TOML file and under `/config/` is the flag with `_` for `-`, unless the table says otherwise; a warning names unknown keys.

A duration is written as Go writes it: `300ms`, `1.5h`, `1m30s500ms`. In the TOML file an integer is milliseconds.
Whole numbers may be written as `0x`, `0o` or `0b`, and with `_` between the digits.
"""

ABOUT_NSQLOOKUPD: Final = """\
Flags, environment (`NSQLOOKUPD_` and the flag in capitals, with `_` for `-`), TOML file and durations are read [as nsqd reads them](nsqd-options.md).

nsqlookupd keeps nothing on disk: after a restart every nsqd registers again.
`/lookup` can wait for a change, which saves consumers from polling: [how and why](../decisions/0002-lookup-that-waits.md).

Deliberate differences from NSQ:

- Lists are sorted.
- An ephemeral topic or channel is removed when the last nsqd that has it disconnects.
- An IPv6 node can be tombstoned with or without brackets.
- `POST /topic/delete?topic=*` is refused, and `*` is not a wildcard anywhere else.
- A negative size before the body of an IDENTIFY gets an error, and does not end the process.
- That body has at most 64 KiB, and so has the line of a command.
- `/debug` shows 0 as the time of a tombstone that never was.
- There is no `/debug/pprof`.
"""

ABOUT_NSQADMIN: Final = """\
Flags, environment (`NSQADMIN_` and the flag in capitals, with `_` for `-`), TOML file and durations are read [as nsqd reads them](nsqd-options.md).

Exactly one of `--lookupd-http-address`, `--nsqd-http-address` and `--snapshot` has to be given; the first two may be repeated.
The names in addresses need not be resolvable at the start.
"""

ABOUT_TOOLS: Final = """\
# Command line tools

<!-- Written by scripts/make-reference from the tables of flags. Change the tables, not this page. -->

NSQ's tools with their names and flags, and `nsq_replay`, `nsq_dead`, `nsq_deferred`, `nsq_bench` and `outbox_to_nsq`, which NSQ does not have.
`TOOL --help` prints the same. [Differences](differences.md#command-line-tools) lists where they behave differently from NSQ's.

How to use them: [archive into files](../how-to/archive-to-files.md), [read and replay history](../how-to/replay.md), [deal with messages that fail](../how-to/failed-messages.md), [measure](../how-to/measure.md).

## Common to all tools

A flag has one dash or two. Its value follows `=` or is the next argument; the value of a flag of type bool only follows `=`.
A flag that may be given multiple times accumulates values; of any other flag the last one counts.
Tools read no configuration file and no environment variables.
Durations are written as in Go: `300ms`, `1.5h`, `1m30s`.
Every tool has `--help` and `--version`.

After the first SIGINT or SIGTERM, a tool that publishes or forwards waits up to five seconds for work under way, and then gives it up.
A message that a forwarding tool gives up is delivered again, so its destination may get it twice.

Standard output carries data only; all messages go to standard error.

| Exit status | When |
| --- | --- |
| 0 | normal end, also after the first SIGINT or SIGTERM |
| 1 | a setting cannot be used, or something failed; the last line on standard error says what |
| 2 | the command line is wrong; the reason and all flags are on standard error |
| 3 | `nsq_replay`: the range was not replayed completely, because it was stopped or parts can no longer be read; `nsq_dead`, `nsq_deferred`: not everything was done or seen |
| 130, 143 | the second SIGINT or SIGTERM, which ends the tool at once |
| 141 | the reader of standard output has gone |

`--consumer-opt` and `--producer-opt` take a [setting of the client library](client-options.md): `name,value`, or `name` alone for true.
The names are
{client_options}.
`-` and `_` are the same in names.
The user agent is always that of the tool.
"""


def tools_page() -> str:
    names = ", ".join(f"`{name}`" for name in sorted(CLIENT_OPTIONS))
    parts = [ABOUT_TOOLS.format(client_options=names)]
    for tool in (
        nsq_bench,
        nsq_dead,
        nsq_deferred,
        nsq_replay,
        nsq_stat,
        nsq_tail,
        nsq_to_file,
        nsq_to_http,
        nsq_to_nsq,
        outbox_to_nsq,
        to_nsq,
    ):
        name = tool.__name__.rpartition(".")[2]
        about = tool.ABOUT.strip().replace("<", "\\<")
        parts.append(f"## {name}\n\n{about}\n\n{reference_table(tool.Options)}")
    return "\n".join(parts)


ABOUT_CLIENT: Final = """\
# Settings of nsqclient

In code, settings are fields of `nsqclient.Config`; times are in seconds.
`Config.from_options` and the tools' `--consumer-opt` and `--producer-opt` take NSQ's names and texts: durations are written as in Go, `-` and `_` are the same, and errors have NSQ's words.
How to use them: [Publish and consume from Python](../how-to/python-client.md).

| option | field | default | from | to | |
| --- | --- | --- | --- | --- | --- |
"""
ABOUT_CODE_ONLY: Final = """
Only in code:

| field | default | |
| --- | --- | --- |
"""
CODE_ONLY: Final[Mapping[str, str]] = {
    "server_hostname": "the name that nsqd's certificate must have; by default the host that is dialled",
    "reconnect_delay": "`growing`: half a second to a minute; `fixed`: `lookupd_poll_interval`, as in NSQ",
    "rdy_policy": "`adaptive`: busy nsqds get the unused share of idle ones, and with more nsqds than `max_in_flight` turns "
    "last a second at most; `even`: equal shares, and the turns of `low_rdy_idle_timeout` and `low_rdy_timeout`",
    "drain_timeout": "how long a consumer or producer waits for answers when it ends",
    "lookupd_strategy": "`rotate`: ask one nsqlookupd after another, for very large fleets",
    "lookupd_wait": "let our nsqlookupd report changes at once",
}


def client_page() -> str:
    plain = Config()
    lines = []
    for name, option in sorted(CLIENT_OPTIONS.items()):
        bounds = " | ".join("" if bound is None else f"{bound:g}" for bound in (option.least, option.most))
        lines.append(f"| `{name}` | `{option.field}` | `{getattr(plain, option.field)}` | {bounds} | {option.help} |")
    only = [f"| `{name}` | `{getattr(plain, name)}` | {text} |" for name, text in CODE_ONLY.items()]
    return ABOUT_CLIENT + "\n".join(lines) + "\n" + ABOUT_CODE_ONLY + "\n".join(only) + "\n"


def pages() -> Mapping[Path, str]:
    return {
        Path("docs/reference/nsqd-options.md"): reference_page(Options, "nsqd", about=ABOUT_NSQD),
        Path("docs/reference/nsqlookupd-options.md"): reference_page(
            LookupOptions, "nsqlookupd", about=ABOUT_NSQLOOKUPD
        ),
        Path("docs/reference/nsqadmin-options.md"): reference_page(AdminOptions, "nsqadmin", about=ABOUT_NSQADMIN),
        Path("docs/reference/nsqadmin-records.md"): nsqadmin_reference.page(),
        nsqadmin_openapi.PATH: nsqadmin_openapi.page(ROOT),
        Path("docs/reference/tools.md"): tools_page(),
        Path("docs/reference/client-options.md"): client_page(),
        Path("docs/reference/nsqpipe.md"): nsqpipe_reference.page(),
    }


def main() -> None:
    for path, text in pages().items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
