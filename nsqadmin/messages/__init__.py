"""What is in messages: reading a topic's history, peeking, tailing, publishing, publishing a range again.

Looking changes nothing anywhere. Bodies are shown to who has the right, and masked here and not in the browser.
"""
