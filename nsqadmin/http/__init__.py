"""The web application: routes, answers, logins, live updates, metrics, and two HTTP APIs.

`api_v2.py` is ours. `api_v1.py`, `config.py` and `graphite.py` are the one of NSQ's nsqadmin (`/api/*`, `/config/*`,
`/render`), for which the cluster is asked anew at each request. In `live.py` are the viewers of open pages and what has
changed for them; `live_cells.py` has a page's numbers, `event_stream.py` is one viewer's answer, and
`web/static/app.js` puts what it brings into the page.
"""
