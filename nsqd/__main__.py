"""Makes `python -m nsqd` run the command `nsqd`."""

from nsqd.cli import main

main()
