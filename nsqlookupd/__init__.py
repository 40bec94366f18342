"""The directory: which nsqd has which topic and channel.

    nsqd ── TCP ──► tcp.py ──► protocol.py (core) ──► registry.py (core) ◄── http_api.py ◄── HTTP ── consumers
                                                            │                    └── answers.py: JSON
                                                            └── missing.py (core): nodes that are gone

`registry.py` has the rules: which nodes are active, what a tombstone hides, when a dead node is forgotten. Every change
is made in a turn (`turn.py`), which first passes the time to the registry and at the end sends the answers.
"""
