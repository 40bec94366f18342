"""What several of our packages use.

It chooses the core as well: with NSQ_PURE=1 in the environment, our modules run as pure Python even where a compiled
wheel is installed.
"""

import os

if os.environ.get("NSQ_PURE") == "1":
    from nsqcommon.source_finder import install

    install()
