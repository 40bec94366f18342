"""Reading a log: from memory, from the page cache, with a thread, and from a disk that refuses."""
