"""`python -m nsqlookupd` is the command `nsqlookupd`."""

from nsqlookupd.cli import main

main()
