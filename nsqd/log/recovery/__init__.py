"""What a start finds in a data path, and how it restores the store from that."""
