"""Actions of the commands."""
