"""`python -m nsqtools nsq_tail ...` is the command `nsq_tail`, and so for each tool."""

import sys

from nsqtools import cli

getattr(cli, sys.argv.pop(1))()
