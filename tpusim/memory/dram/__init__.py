"""DRAM: devices, the mapping of addresses, and two models of a controller."""
