"""Actions: what users change in the cluster. They are planned, confirmed, carried out on every node, and recorded."""
