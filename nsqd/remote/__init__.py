"""One object store as the engine that survives the loss of this machine: docs/decisions/0032.

`object_store` says what a store has to do, `stores/` has three that do it, `location` reads `--remote=URL`, and `check`
proves that a store keeps its word. `cli` is the command `nsqd remote`.
"""
