"""Kernels for real GPUs, to time what is simulated here. Nothing else needs them, and no heavy library is imported."""
