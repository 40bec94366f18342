"""`python -m nsqadmin` is the command `nsqadmin`."""

from nsqadmin.cli import main

main()
