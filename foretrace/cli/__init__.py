"""Commands to run from a terminal."""
