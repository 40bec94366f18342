"""Live updates of open pages: `cells.py` has a page's numbers, `hub.py` its viewers and what has changed for them.

`event_stream.py` is one viewer's HTTP answer, and `web/static/app.js` puts what it brings into the page.
"""
