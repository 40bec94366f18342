"""Places of tables and checkpoints: folders and object stores. places.py has their names and keys.

storage.py checks whether they are usable, and reads and writes small files there.
"""
