"""The web interface of a cluster: what it does, what is wrong with it, and what users change in it.

    upstream/      asks nsqd and nsqlookupd over HTTP
    sampling/      the one task that asks all of them every few seconds, and makes the picture, a `Snapshot`
    cluster/       the picture and its history; diagnosis/ says what is wrong in it
    incidents/     its findings grouped by cause, and followed over time: the first page
    pages/         the picture as HTML; web/ has the templates, styles and scripts
    http/          the application; http/live/ updates open pages, api_v2.py is the picture as JSON
    actions/       what users change: planned, carried out on every node, recorded; access/ says who may
    messages/      what is in topics: reading, peeking, tailing, publishing, replaying
    compat/        the HTTP API of NSQ's nsqadmin, which does not use the picture

`daemon.py` starts all this, and `services.py` is what handlers of requests get of it. Why there is one picture:
docs/decisions/0007-nsqadmin.md.
"""
