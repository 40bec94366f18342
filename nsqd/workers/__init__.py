"""Several nsqd processes on one machine under one supervisor: `nsqd --workers=4`.

    nsqd --workers=4                       supervisor.py: starts, watches and restarts; touches no message
      ├── nsqd --worker=0 --workers=4      worker.py: an nsqd like any other, whose options plan.py has shifted
      ├── nsqd --worker=1 --workers=4
      └── ...

Each worker has its own folder, ports and message ids, and registers with nsqlookupd by itself. So to clients, to
nsqlookupd and to nsqadmin a machine with four workers is four nodes. docs/decisions/0022-workers.md says why.
"""
