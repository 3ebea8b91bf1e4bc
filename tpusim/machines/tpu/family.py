"""The TPU as a machine family: the names that it gives to what it does. Help pages import it: nothing heavy with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import UnsuitableError
from tpusim.machines.family import Area, Checking, Family, Lanes, Planned, Riding
from tpusim.machines.lowered import Ran
from tpusim.machines.tpu.lowering.registry import LOWERINGS, least_of, meant, unasked

if TYPE_CHECKING:
    from tpusim.input.document import Document
    from tpusim.input.form import Overrides
    from tpusim.machines.tpu.description import Hardware
    from tpusim.machines.tpu.lowering.drafts import Lowering
    from tpusim.machines.tpu.runs.chains import ProgramChain
    from tpusim.machines.tpu.runs.prepared import Prepared
    from tpusim.network.ops.op import Op
    from tpusim.network.workload import Workload


class _Glosses(Mapping[str, str]):
    """The gloss of each lowering, for which its module is imported; names come without."""

    def __getitem__(self, name: str) -> str:
        return LOWERINGS[name].gloss

    def __iter__(self) -> Iterator[str]:
        return iter(LOWERINGS)

    def __len__(self) -> int:
        return len(LOWERINGS)


class Tpu(Family):
    """Systolic arrays beside vector memories: `machines.family.Family`."""

    name = "tpu"
    title = "a TPU"
    engines = "event", "register", "both"
    unbounded = frozenset({"winograd_2", "winograd_4", "fft"})
    array_order = True

    @property
    def lowerings(self) -> Mapping[str, str]:
        """Glosses by the names of the registry, which tests add to."""
        return _Glosses()

    @property
    def partial(self) -> frozenset[str]:
        """Names of lowerings that refuse some layers."""
        return frozenset(name for name, each in LOWERINGS.items() if each.partial)

    def paths(self) -> tuple[str, ...]:
        """Every field of its description, and "array.size"."""
        from tpusim.machines.tpu.description import FORM

        return FORM.paths

    def model(self) -> type[Hardware]:
        """Its description."""
        from tpusim.machines.tpu.description import Hardware

        return Hardware

    def read(self, document: Document, overrides: Overrides) -> Hardware:
        """The machine that a file describes. Raises InputError."""
        from tpusim.machines.tpu.description import read_hardware

        return read_hardware(document, overrides)

    def meant(self, layer: Op, lowering: str) -> str:
        """Ops of a unit that has one way to do them are lowered in that way."""
        return meant(layer, lowering)

    def unasked(self, layer: Op, batch: int, machine: Hardware) -> str:
        """The first lowering; for layers of several groups the one that their estimate prefers."""
        return unasked(layer, batch, machine)

    def lanes(self, machine: Hardware) -> Lanes:
        """Each row or column of the arrays has a lane."""
        return Lanes(machine.lanes, machine.capacity_words, machine.word_bytes)

    def area(self, machine: Hardware) -> Area:
        """Part by part."""
        from tpusim.machines.tpu.cost import area_of

        return area_of(machine)

    def facts(self, machine: Hardware) -> Mapping[str, str]:
        """What tells one TPU from another."""
        from tpusim.machines.tpu.runs.told import facts

        return facts(machine)

    def blocks(self, machine: Hardware) -> Mapping[str, Sequence[str]]:
        """Its memories, buses, array and vector unit."""
        from tpusim.machines.tpu.runs.told import blocks

        return blocks(machine)

    def constants(self, machine: Hardware) -> Mapping[str, Any]:
        """A shipped technology goes by its name, and its constants may change."""
        return {"technology": machine.silicon.to_dict()}

    def left_out(self) -> Mapping[str, Any]:
        """By section and key."""
        from tpusim.machines.tpu.description import optional_fields

        return optional_fields()

    def tried(self, layer: Op, batch: int) -> tuple[str, ...]:
        """All but those that leave the layer to another."""
        return tuple(name for name, each in LOWERINGS.items() if not _is_left(each, layer, batch))

    def least(self, layer: Op, batch: int, machine: Hardware, lowering: str) -> float:
        """What its lowering tells."""
        return least_of(layer, batch, machine, lowering)

    def planned(self, layer: Op, batch: int, machine: Hardware, lowering: str, most: int) -> Planned:
        """By the steps of its Program."""
        from tpusim.machines.tpu.runs import need

        return need.planned(layer, batch, machine, lowering, most)

    def value_bytes(self, layer: Op, batch: int, machine: Hardware, planned: Planned, how: Checking) -> int:
        """Part by part as they are written, or as the register engine has them."""
        from tpusim.machines.tpu.runs import need

        return need.value_bytes(layer, batch, machine, planned, how)

    def larger(self, machine: Hardware) -> Iterator[tuple[str, Hardware]]:
        """Ever larger arrays."""
        from tpusim.machines.tpu.runs import need

        return need.larger(machine)

    def riding(self, machine: Hardware) -> Riding | None:
        """As many operations as there are ALUs for a lane, if the machine fuses."""
        if machine.sequencer.fusion == "none":
            return None
        from tpusim.machines.tpu.program.steps import Finish

        return Riding(
            most=machine.vector_unit.alus // (machine.lanes * machine.array.count),
            carries=lambda lowering: LOWERINGS[lowering].carries,
            operations=lambda operation, coefficients: sum(Finish(operation, coefficients).operations),
        )

    def lowered(self, layer: Op, batch: int, machine: Hardware, lowering: str) -> Prepared:
        """The Program of the fastest draft."""
        from tpusim.machines.tpu.runs.prepared import prepared

        return prepared(layer, batch, machine, lowering)

    def overlaps(self, machine: Hardware) -> bool:
        """As its sequencer says."""
        return machine.sequencer.between_layers != "drain"

    def chains(
        self, members: Iterable[Ran], workload: Workload, machine: Hardware, kept: int
    ) -> Iterator[ProgramChain[Ran]]:
        """Layers joined to Programs."""
        from tpusim.machines.tpu.runs.chains import chains_of

        return chains_of(members, workload, machine, kept)


def _is_left(lowering: Lowering, layer: Op, batch: int) -> bool:
    """Whether it would leave the layer to another, which takes convolutions alone."""
    try:
        return lowering.leaves(layer, batch)
    except UnsuitableError:
        return False


FAMILY = Tpu()
