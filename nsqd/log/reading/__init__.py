"""Reading a log: from memory, from the page cache, in a thread, and from a disk that refuses to read."""
