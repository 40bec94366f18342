"""Messages: reading a topic's history, peeking, tailing, publishing, and replaying a range.

Reading and peeking change nothing on any node. Bodies are shown to users with the right `payload`; for others they are
masked here, before anything reaches a browser.
"""
