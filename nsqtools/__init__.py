"""The command line tools: one module for each command, with its name, and modules that several of them share."""
