"""Kernels for real GPUs, to time what is simulated here. Nothing else needs them, and nothing heavy is imported."""
