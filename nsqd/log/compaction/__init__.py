"""Carrying messages forward out of segments of which little is needed."""
