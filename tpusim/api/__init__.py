"""The commands as functions of Python: each asks what its command asks, and returns the answer as a record."""
