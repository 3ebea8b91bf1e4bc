"""What `--input` and `--save-outputs` ask: the values of a network from end to end."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError, Problem
from tpusim.base.files import probe
from tpusim.cli.terminal import say
from tpusim.flow.numbers import INTEGERS, numbers_of
from tpusim.input.arrays import Arrays, read_arrays, write_arrays
from tpusim.network.formats.asked import ModelOptions
from tpusim.network.workload import Workload
from tpusim.numerics.element_types import F32

if TYPE_CHECKING:
    from tpusim.flow.values import Journey
    from tpusim.network.graph import Graph, Values


@dataclass(frozen=True)
class EndToEnd:
    """Where the inputs of a network come from, and its outputs go; None: they are random, they are not kept."""

    source: Path | None
    target: Path | None

    @cached_property
    def arrays(self) -> Arrays:
        """The inputs, by name. Raises InputError."""
        return read_arrays(self.source) if self.source else {}

    @property
    def asked(self) -> bool:
        """Whether values are to go from layer to layer at all."""
        return bool(self.source or self.target)

    def dtype(self, given: str | None) -> str:
        """The element type, where none is `given`: that of the network, or small whole numbers."""
        return given or (F32.name if self.asked else INTEGERS)

    def journey(
        self, workload: str, work: Workload, asked: ModelOptions, check: bool, dtype: str, sums: str, seed: int
    ) -> Journey | None:
        """The values on their way, before the first layer.

        Raises:
            InputError: the workload is no model with weights, inputs or outputs cannot be read or written, or values
                cannot be computed.
        """
        if not self.asked:
            return None
        if not check or dtype == INTEGERS:
            wrong = f"--dtype {INTEGERS}: they are made for each layer" if check else "--no-check: nothing is computed"
            raise InputError(f"{wrong}; leave it out, with --input and --save-outputs")
        if self.target is not None:
            _check_name(self.target)
            probe(self.target)
        from tpusim.flow.values import Journey
        from tpusim.network.formats import read_graph

        graph = read_graph(Path(workload), asked, work.batch)
        return Journey(graph, work, self._inputs(graph, work.batch, seed), numbers_of(dtype, sums))

    def save(self, journey: Journey) -> None:
        """Write the outputs, where they are wanted."""
        if self.target is not None:
            write_arrays(self.target, journey.outputs())

    def _inputs(self, graph: Graph, batch: int, seed: int) -> dict[str, Values]:
        from tpusim.flow.network_inputs import checked, drawn, listed

        if self.source is None:
            made = drawn(graph, batch, seed)
            say(sys.stderr, f"Note: {listed(made)}: random, as no --input FILE.npz gives it")
            return made
        try:
            return checked(graph, self.arrays, batch)
        except InputError as error:
            placed = (replace(each, where=each.where or str(self.source)) for each in error.problems)
            raise InputError(placed) from None


def _check_name(target: Path) -> None:
    if target.suffix.lower() != ".npz":
        says = f"arrays are written as .npz, not as {target.suffix or 'no suffix'}"
        raise InputError(Problem(f"{says}; name it FILE.npz", str(target)))
