"""The data path: which values a Program computes, through the simulated vector memories."""

from tpusim.machines.tpu.datapath.interpreter import run

__all__ = ["run"]
