"""Pictures of the exhibits of `tpusim paper`."""
