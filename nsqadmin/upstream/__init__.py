"""Queries nsqd and nsqlookupd over HTTP, and parses their answers, which may be hostile.

`client.py` sends requests; `discovery.py`, `queries.py` and `policies.py` know which. `sampler.py` polls every node,
and builds one `Snapshot` from the answers:

    census (every 15 s, or on news) ─► nodes ─► stats (5 s, a deadline for each) ─► cluster ─► put series ─► diagnosis ─► Snapshot

`census`, `stats` and `readers` send the requests; `asked`, `interest`, `kept_nodes`, `node_view` and `rows` are parts.
"""
