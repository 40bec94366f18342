"""Where tables and checkpoints lie: folders and object stores. places.py knows their names and their keys."""
