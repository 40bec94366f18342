"""Actions: users' changes to the cluster. They are planned, confirmed, carried out on every node, and recorded."""
