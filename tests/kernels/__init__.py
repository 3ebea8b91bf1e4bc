"""Kernels for real GPUs, in their interpreter."""
