"""Pictures of all nsqadmin's pages from two checkouts, compared pixel by pixel.

    python -m scripts.compare_pictures BEFORE_TREE AFTER_TREE --out FOLDER

Both checkouts run in this environment and see the same data, so only their code can make a difference:

- Half of the pages are of a recorded cluster, tests/browser/demo.py.
- The other half shows a real cluster behind proxies (recorder.py). Both nsqadmins run side by side; the first one asks
  real nodes, and the second one gets the same answers, page by page.
- nsqadmin's clock stands still (still_nsqadmin.py), and so does the browser's (photographer.py).
"""
