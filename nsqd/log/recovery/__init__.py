"""What a start finds in a data path."""
