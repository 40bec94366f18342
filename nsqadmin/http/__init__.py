"""The web application: routes, answers, logins, live updates, metrics, and two HTTP APIs.

`api_v2.py` is ours. `api_v1.py`, `config.py` and `graphite.py` have the API of NSQ's nsqadmin (`/api/*`, `/config/*`,
`/render`), which queries the cluster at each request. `live.py` has the viewers of open pages and sends them changes;
`live_cells.py` has a page's numbers, `event_stream.py` is the answer to one viewer, and `web/static/app.js` updates the
page.
"""
