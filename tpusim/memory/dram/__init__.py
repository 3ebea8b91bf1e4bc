"""DRAM: devices, the mapping of addresses, and the two models of a controller."""
