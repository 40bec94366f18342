"""Asks nsqd and nsqlookupd over HTTP, and reads their answers, which may be hostile.

`client.py` asks; `discovery.py`, `queries.py` and `policies.py` know what to ask. `sampler.py` asks every node again and
again, and makes one `Snapshot` of the answers:

    census (every 15 s, or on news) ─► nodes ─► stats (5 s, a deadline for each) ─► cluster ─► put series ─► diagnosis ─► Snapshot

`census`, `stats` and `readers` ask for it; `asked`, `interest`, `kept_nodes`, `node_view` and `rows` are its parts.
"""
