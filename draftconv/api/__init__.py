"""The verbs behind the commands: one module per command, the same names and arguments."""
