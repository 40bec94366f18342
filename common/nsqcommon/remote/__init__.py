"""What a node keeps in an object store: names and formats, for all that read it.

Writing and deciding is `nsqd.remote`'s part.
"""
