"""The version of tpusim, and of its timing model: results name it."""

__version__ = "1.0.0"
