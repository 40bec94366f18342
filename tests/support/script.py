"""Runs a program that uses our client: `python -P -m tests.support.script FILE ARGUMENTS...`, or MODULE instead of FILE.

It is as `python FILE` and `python -m MODULE`, but can be forked from a process that has imported the client.
"""

import os
import runpy
import sys

_, program, *arguments = sys.argv
sys.argv[:] = [program, *arguments]
if program.endswith(".py"):
    sys.path.insert(0, os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")
else:
    sys.path.insert(0, os.getcwd())
    runpy.run_module(program, run_name="__main__", alter_sys=True)
