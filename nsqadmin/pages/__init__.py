"""The pages as HTML, complete without scripts: `topic.py` renders `web/templates/topic.html`.

A page with its own address has `routes`, and `nsqadmin/site.py` lists it. The others answer a form (`receipt.py`) or
replace another page (`error.py`). Shared parts are in `parts/`; numbers listed in `http/live_cells.py` are updated
live.
"""
