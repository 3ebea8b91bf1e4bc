"""The data path: which values a Program computes, through the simulated vector memories."""

from tpusim.machines.tpu.datapath.interpreter import Taker, run

__all__ = ["Taker", "run"]
