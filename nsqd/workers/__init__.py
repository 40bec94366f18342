"""Several nsqd processes on one machine under one supervisor: `nsqd --workers=4`.

    nsqd --workers=4                       supervisor.py: starts, watches and restarts workers; handles no messages
      ├── nsqd --worker=0 --workers=4      worker.py: an ordinary nsqd, with options from settings.py
      ├── nsqd --worker=1 --workers=4
      └── ...

Each worker has its own folder, ports and message ids, and registers with nsqlookupd by itself. So clients, nsqlookupd
and nsqadmin see a machine with four workers as four nodes. For the reasons, see docs/decisions/0022-workers.md.
"""
