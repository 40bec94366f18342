"""Runs setuptools in the current folder, with the Python that the build is for: `backend.py sdist|wheel FOLDER`.

A file of its own that imports nothing of ours, as that Python need not have our environment.
"""

import os
import sys

from setuptools import build_meta

os.umask(0o022)  # the permissions of files get into the archives
if sys.argv[1] == "sdist":
    build_meta.build_sdist(sys.argv[2])
else:
    build_meta.build_wheel(sys.argv[2])
