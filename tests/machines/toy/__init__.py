"""A machine family that the package has never seen: a multiplier that waits for its bytes, then works them off."""
