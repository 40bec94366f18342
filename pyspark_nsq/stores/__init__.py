"""Where tables and checkpoints lie: folders and object stores. places.py knows their names and their keys.

storage.py checks whether they can be used, and reads and writes small files there.
"""
