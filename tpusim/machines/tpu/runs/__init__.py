"""Layers made ready for a TPU, alone or several as one: the answers that `flow` asks for, and facts of a run."""
