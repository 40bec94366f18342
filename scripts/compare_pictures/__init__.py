"""Pictures of all nsqadmin's pages from two checkouts, compared pixel by pixel.

    python -m scripts.compare_pictures BEFORE_TREE AFTER_TREE --out FOLDER

Both checkouts run in this environment and see the same data, so that a difference is one of the code:

- Half of the pages are of a recorded cluster, tests/browser/demo.py.
- For the other half there is a real cluster behind proxies (recorder.py). Both checkouts' nsqadmins run beside each other;
  the first one asks real nodes, and the second one gets the same answers again, page for page.
- nsqadmin's clock stands still (still_nsqadmin.py), and so does the browser's (photographer.py).
"""
