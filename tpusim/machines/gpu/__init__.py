"""GPUs with tensor cores: blocks of threads, each with a tile of the product in shared memory."""
