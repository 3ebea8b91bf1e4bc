"""Several chips: slices, meshes on them, collectives step by step, and three engines that time these."""
