"""One file for each command: its arguments in `add`, and what it does in `run`."""
