"""The generated pages of docs/reference: `python -m scripts.reference` writes them, a test compares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Final

from nsqadmin.options import Options as AdminOptions
from nsqclient import Config
from nsqclient.core.config import OPTIONS as CLIENT_OPTIONS
from nsqcommon.options import Option, table_of
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
from scripts import nsqadmin_openapi, nsqpipe_reference
from scripts.option_pages import reference_line, reference_page, reference_table

ROOT: Final = Path(__file__).resolve().parent.parent

ABOUT_NSQD: Final = """\
```text
nsqd --data-path=/var/lib/nsq --ack=synced --lookupd-tcp-address=10.0.0.5:4160
```

A flag has one dash or two. Its value follows `=` or is the next argument. A flag without a type in the table is a bool: `--flag` or `--flag=false`.
You can give a list several times. An argument that isn't a flag is refused.

If a flag is absent, its value comes from the environment, then from the TOML file of `--config`, then from the default.
The environment variable of `--tcp-address` is `NSQD_TCP_ADDRESS`; a list has commas.
The key in the TOML file and under `/config/` is the flag with `_` for `-`, unless the table has another one; a warning names unknown keys.

Durations are Go's, and may begin with days: `300ms`, `1.5h`, `1m30s500ms`, `7d`, `1d12h`. In the TOML file an integer is milliseconds.
Whole numbers may be `0x`, `0o` or `0b`, with `_` between the digits.
"""

ABOUT_NSQLOOKUPD: Final = """\
Flags, environment (`NSQLOOKUPD_TCP_ADDRESS`), TOML file and durations work [as in nsqd](nsqd-options.md).
nsqlookupd keeps nothing on disk: after a restart every nsqd registers again.

These differ from NSQ on purpose; [more](differences.md#between-nsqd-and-nsqlookupd):

- Lists are sorted.
- You can tombstone an IPv6 node with or without brackets.
- `POST /topic/delete?topic=*` is refused; `*` isn't a wildcard anywhere.
- A negative size before the body of an IDENTIFY gets an error, and doesn't end the process.
- That body and the line of a command have at most 64 KiB.
- `/debug` shows 0 as the time of a tombstone that never was.
- There is no `/debug/pprof`.
"""

ABOUT_NSQADMIN: Final = """\
Flags, environment (`NSQADMIN_HTTP_ADDRESS`), TOML file and durations work [as in nsqd](nsqd-options.md).

Give exactly one of `--lookupd-http-address`, `--nsqd-http-address` and `--snapshot`.
The names in addresses need not resolve at the start.
"""

ABOUT_TOOLS: Final = """\
# Command line tools

<!-- Written by scripts/make-reference from the tables of flags. Change the tables, not this page. -->

NSQ's tools with their names and flags ([differences](differences.md#command-line-tools)), and `nsq_replay`, `nsq_dead`, `nsq_deferred`, `nsq_bench` and `outbox_to_nsq`, which NSQ doesn't have.
`TOOL --help` prints the same. How to: [archive into files](../how-to/archive-to-files.md), [replay](../how-to/replay.md), [failed messages](../how-to/failed-messages.md), [delayed messages](../how-to/delayed-messages.md), [measure](../how-to/measure.md).

```text
nsq_tail --topic=orders --nsqd-tcp-address=127.0.0.1:4150 -n 10
```

## Common to all tools

A flag has one dash or two. Its value follows `=` or is the next argument. A flag without a type in the table is a bool: `--flag` or `--flag=false`.
You can give a list several times; of any other flag the last one counts.
Durations are Go's, and may begin with days: `300ms`, `1.5h`, `1m30s`, `7d`.
Tools read no configuration file and no environment variables. Each has `--help` and `--version`.

Standard output carries data only; all messages go to standard error.
After the first SIGINT or SIGTERM, a tool that publishes or forwards waits up to five seconds for work under way.
A message that a forwarding tool then gives up is delivered again, so its destination may get it twice.

| Exit status | When |
| --- | --- |
| 0 | normal end, also after the first SIGINT or SIGTERM |
| 1 | a setting is unusable, or something failed; the last line on standard error says what |
| 2 | the command line is wrong |
| 3 | `nsq_replay`, `nsq_dead`, `nsq_deferred`: not everything was done or seen |
| 130, 143 | the second SIGINT or SIGTERM |
| 141 | the reader of standard output has gone |

Flags of several tools, which have the same meaning in each:

"""
ABOUT_OPTS: Final = """
`--consumer-opt` and `--producer-opt` take a [setting of the client library](client-options.md), such as `--consumer-opt=max_attempts,10` or `--producer-opt=tls_v1`; the user agent is always the tool's.
"""
TOOLS: Final = (
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
# What this many tools say alike is said once, above all of them.
SHARED_BY: Final = 3


def tools_page() -> str:
    counts = Counter(reference_line(row, in_file=False) for tool in TOOLS for row in table_of(tool.Options))
    shared = {line for line, count in counts.items() if count >= SHARED_BY}
    rows = {
        reference_line(row, in_file=False): row
        for tool in TOOLS
        for row in table_of(tool.Options)
        if _is_in(row, shared)
    }
    parts = [ABOUT_TOOLS + reference_table(rows.values()) + ABOUT_OPTS]
    for tool in TOOLS:
        name = tool.__name__.rpartition(".")[2]
        about = tool.ABOUT.strip().replace("<", "\\<")
        options = table_of(tool.Options)
        table = reference_table(it for it in options if not _is_in(it, shared))
        also = ", ".join(f"`--{flag}`" for flag in sorted(it.flag for it in options if _is_in(it, shared)))
        more = f"\n[Also](#common-to-all-tools) {also}.\n" if also else ""
        parts.append(f"## {name}\n\n{about}\n\n{table}{more}")
    return "\n".join(parts)


def _is_in(row: Option, lines: Set[str]) -> bool:
    return reference_line(row, in_file=False) in lines


ABOUT_CLIENT: Final = """\
# Settings of nsqclient

In code, settings are fields of `nsqclient.Config`; times are in seconds.
`Config.from_options` and the tools' `--consumer-opt` and `--producer-opt` take NSQ's names and texts: durations are Go's or have days, `-` and `_` are the same.

```python
config = nsqclient.Config(max_in_flight=100, max_attempts=10)
```

How to use it: [Publish and consume from Python](../how-to/python-client.md).

| option (field, if it has another name) | default | range | |
| --- | --- | --- | --- |
"""
ABOUT_CODE_ONLY: Final = """
Only in code:

| field | default | |
| --- | --- | --- |
"""
ABOUT_PLACES: Final = """
## Which nsqd a key, a group or a topic belongs to

The strategies `by_key`, `by_group` and `by_topic` of [a producer](../how-to/python-client.md#publish), and `nsqclient.blocking` for messages with a group, choose by rendezvous hashing.
It is the same in all versions, and any client can do it:

1. Take the nsqds that accept publishes: neither draining, full nor unhealthy (`state` in nsqlookupd's `/nodes`), nor failed lately. If there are none, take all.
2. The weight of an nsqd is the BLAKE2b hash with a digest of 8 bytes, without a key, of: the bytes of the key, group or topic; one byte `0x0a`; the nsqd's address as text, `host:port`, such as `10.0.0.1:4150` or `[fe80::1]:4150`.
3. Compare weights as bytes, from the first on. The highest one wins; if two are equal, the address that is greater as text.

| group | weight of `10.0.0.1:4150` | weight of `10.0.0.2:4150` | gets it |
| --- | --- | --- | --- |
| `customer-3` | `e5a4c59e11e5bfe4` | `50f3764f49c231b1` | `10.0.0.1:4150` |
| `Zürich` | `62a6ed955a674775` | `e2f5e7bc282eb70f` | `10.0.0.2:4150` |

Use the same addresses in all programs: those that nsqlookupd lists, or the same text in each configuration, because `localhost:4150` and `127.0.0.1:4150` are two addresses here.
An nsqd that is added takes over its share of the groups, and one that is away leaves its own to the others, until it is back; all other groups stay where they are.
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
        field = "" if option.field == name else f" (`{option.field}`)"
        default = getattr(plain, option.field)
        lines.append(f"| `{name}`{field} | `{default}` | {_range(option.least, option.most)} | {option.help} |")
    only = [f"| `{name}` | `{getattr(plain, name)}` | {text} |" for name, text in CODE_ONLY.items()]
    return ABOUT_CLIENT + "\n".join(lines) + "\n" + ABOUT_CODE_ONLY + "\n".join(only) + "\n" + ABOUT_PLACES


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return "" if least is None else f"≥{least:g}"
    return f"≤{most:g}" if least is None else f"{least:g}–{most:g}"


def pages() -> Mapping[Path, str]:
    return {
        Path("docs/reference/nsqd-options.md"): reference_page(Options, "nsqd", about=ABOUT_NSQD),
        Path("docs/reference/nsqlookupd-options.md"): reference_page(
            LookupOptions, "nsqlookupd", about=ABOUT_NSQLOOKUPD
        ),
        Path("docs/reference/nsqadmin-options.md"): reference_page(AdminOptions, "nsqadmin", about=ABOUT_NSQADMIN),
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
