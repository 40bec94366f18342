"""The command palette: finds pages, names and ids, and offers commands, which open the plan of an action."""
