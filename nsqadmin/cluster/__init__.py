"""The cluster as nsqadmin shows it: the answers of all nodes merged into one picture, and its history."""
