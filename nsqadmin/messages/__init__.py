"""Messages: reading and searching a topic's history, peeking, tailing, publishing, and replaying.

Reading and peeking change nothing on any node. Only users with the right `payload` see bodies; for others we mask them
here, before anything reaches a browser.
"""
