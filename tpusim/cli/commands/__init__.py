"""The commands of `tpusim`, a module each; `tpusim.cli.app` puts them together."""
