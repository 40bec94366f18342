"""The web interface of a cluster: it shows the cluster's state and problems, and lets users change things.

    upstream/      queries nsqd and nsqlookupd over HTTP; its `sampler` builds a `Snapshot` every few seconds
    cluster/       snapshots and their history
    diagnosis/     problems in a snapshot: findings, and the incidents that they belong to
    pages/         snapshots as HTML: each page is a module and a template with the same name
    parts/         building blocks of pages: charts, tables, tabs, and the painter that renders them
    web/           templates, styles and scripts
    http/          the application, logins, live updates, both APIs (`api_v1` is NSQ's) and metrics
    actions/       changes by users: planned, carried out on every node, recorded
    webhook/       posts about incidents to URLs of other programs
    messages/      the content of topics: reading, peeking, tailing, publishing, replaying

`daemon.py` starts everything, `services.py` is the part that request handlers get, `site.py` has the routes of pages,
and `access.py` decides who may do what. Why there is a single snapshot: docs/decisions/0007-nsqadmin.md.
"""
