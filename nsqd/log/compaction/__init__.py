"""Compaction: copies the few messages still needed out of old segments, so that the segments can be deleted."""
