"""Messages: reading and searching a topic's history, peeking, tailing, publishing, and replaying.

Reading and peeking change nothing on any node. Bodies are shown to users with the right `payload`; for others they are
masked here, before anything reaches a browser.
"""
