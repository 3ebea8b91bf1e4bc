"""Layers made ready for a TPU, alone or several as one: what flow asks of them, and what they tell of a run."""
