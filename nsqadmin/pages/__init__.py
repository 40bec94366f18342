"""The pages as HTML, complete without a script. Their templates, styles and scripts lie in `nsqadmin/web`.

`handlers.py` has the routes, but for those under `/actions`, which `actions.py` and `messages.py` have. What a page shows beyond the model is made in the module with its name (`overview.py`,
`topics.py`, `messages.py`, `readers.py`, `actions.py`) or in `details.py`; its numbers change live if they are among
`http/live_cells.py`.
"""
