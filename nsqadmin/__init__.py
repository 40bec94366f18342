"""The web interface of a cluster: what it does, what is wrong with it, and what users change in it.

    upstream/      asks nsqd and nsqlookupd over HTTP; its `sampler` makes the picture, a `Snapshot`, every few seconds
    cluster/       the picture and its history
    diagnosis/     what is wrong in it: findings, and the incidents that they belong to
    pages/         the picture as HTML: a page is a module and a template with its name
    parts/         what pages are made of: charts, tables, tabs, and the painter that renders them
    web/           templates, styles and scripts
    http/          the application, logins, live updates, both APIs (`api_v1` is NSQ's) and metrics
    actions/       what users change: planned, carried out on every node, recorded
    messages/      what is in topics: reading, peeking, tailing, publishing, replaying

`daemon.py` starts all this, `services.py` is what handlers of requests get of it, `site.py` has the routes of pages, and
`access.py` says who may do what. Why there is one picture: docs/decisions/0007-nsqadmin.md.
"""
