"""Runs a tool from its module: `python -m nsqtools nsq_tail ...` is the command `nsq_tail`."""

import sys
from typing import Final

from nsqtools import cli

TOOLS: Final = {
    "nsq_bench": cli.nsq_bench,
    "nsq_dead": cli.nsq_dead,
    "nsq_deferred": cli.nsq_deferred,
    "nsq_replay": cli.nsq_replay,
    "nsq_stat": cli.nsq_stat,
    "nsq_tail": cli.nsq_tail,
    "nsq_to_file": cli.nsq_to_file,
    "nsq_to_http": cli.nsq_to_http,
    "nsq_to_nsq": cli.nsq_to_nsq,
    "outbox_to_nsq": cli.outbox_to_nsq,
    "to_nsq": cli.to_nsq,
}

tool = TOOLS.get(sys.argv[1]) if len(sys.argv) > 1 else None
if tool is None:
    sys.stderr.write(f"usage: python -m nsqtools TOOL ...; tools: {', '.join(TOOLS)}\n")
    sys.exit(2)
del sys.argv[1]
tool()
