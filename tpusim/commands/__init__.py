"""The commands of `tpusim`, a module each; `tpusim.cli` puts them together."""
