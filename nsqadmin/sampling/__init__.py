"""Makes the picture: every node is asked again and again, and the answers become one `Snapshot`.

    census (every 15 s, or on news) ─► nodes ─► stats (5 s, a deadline for each) ─► cluster ─► put series ─► diagnosis ─► Snapshot

`sampler` is the task; `census`, `stats` and `readers` ask; the other modules work on the answers.
"""
