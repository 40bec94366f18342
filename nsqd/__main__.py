"""`python -m nsqd` is the command `nsqd`."""

from nsqd.cli import main

main()
