"""The commands of `tpusim`, a module each: what one takes, and what it says of itself.

What it does stands in `tpusim.cli.actions`, imported when it is asked for: help and --version come at once.
"""
