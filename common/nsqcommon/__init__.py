"""Code that several of our packages share.

Importing it also chooses the core: with NSQ_PURE=1 in the environment, our modules run as pure Python even if you have
installed a compiled wheel.
"""

import os

if os.environ.get("NSQ_PURE") == "1":
    from nsqcommon.source_finder import install

    install()
