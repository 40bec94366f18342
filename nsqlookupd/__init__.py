"""The directory: which nsqd has which topic and channel.

    nsqd ── TCP ──► tcp.py ──► protocol.py (core) ──► registry.py (core) ◄── http_api.py ◄── HTTP ── consumers
                                                            │                    └── answers.py: JSON
                                                            └── missing.py (core): nodes that have gone

`registry.py` holds the rules: who counts as active, what a tombstone hides, when a dead node is forgotten. Every change
is made in a turn (`turn.py`), which begins with telling the registry the time, and ends with sending the answers.
"""
