"""How the picture is made: everybody is asked again and again, and what they say becomes one `Snapshot`.

    census (every 15 s) ─► nodes ─► stats (5 s, each its own deadline) ─► cluster ─► put series ─► diagnosis ─► Snapshot

`sampler` is the task, `census` and `stats` ask; what they make of the answers is in the others.
"""
