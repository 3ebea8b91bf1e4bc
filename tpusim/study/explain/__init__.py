"""Explanations of a layer's time, found by making one thing easier at a time."""
