"""The pages as HTML, complete without a script: `topic.py` is the page that `web/templates/topic.html` shows.

A page that has an address of its own has `routes`, and `nsqadmin/site.py` lists it. The others are answers to a form
(`receipt.py`) or shown in the place of another page (`error.py`). What several pages are made of is in `parts/`; a
number changes live if it is among `http/live_cells.py`.
"""
