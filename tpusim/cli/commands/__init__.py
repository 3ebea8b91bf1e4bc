"""The commands of `tpusim`, a module each: what a command takes, and what it says of itself.

What it does stands in `tpusim.cli.actions`, imported when it is asked for: help and --version come at once.
"""

# Help lists commands in the order in which they are imported.
# ruff: noqa: I001

from tpusim.cli.commands import run as run
from tpusim.cli.commands import report as report
from tpusim.cli.commands import explain as explain
from tpusim.cli.commands import compare as compare
from tpusim.cli.commands import sweep as sweep
from tpusim.cli.commands import plot as plot
from tpusim.cli.commands import trace as trace
from tpusim.cli.commands import validate as validate
from tpusim.cli.commands import dram as dram
from tpusim.cli.commands import importing as importing
from tpusim.cli.commands import area as area
from tpusim.cli.commands import paper as paper
from tpusim.cli.commands import shipped as shipped
from tpusim.cli.root import app as app
