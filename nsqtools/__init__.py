"""The command line tools: one module each, named as the command is; what several need stands beside them."""
