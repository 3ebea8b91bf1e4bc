"""Random layers that read one another, joined to one Program, for the tests; and the numbers that they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from tests.agreement.map_layers import layers_on, maps
from tests.agreement.test_agreement import asked_for, suppose, with_capacity
from tests.agreement.test_own_weights import Turn, at_random, by_result, dealt, in_turn
from tests.agreement.test_own_weights import own as with_own_weights
from tests.checks import program_for
from tests.strategies import among, lowerings_of, machines_of_all_kinds, with_resident_taps
from tpusim.base.errors import CapacityError
from tpusim.flow.numbers import SMALL, Numbers, numbers_of
from tpusim.flow.verify import expected
from tpusim.machines.tpu.cut.traffic import in_layout
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.registry import LOWERINGS, meant
from tpusim.machines.tpu.lowering.riding import bias_words, riding, spared
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensors import LANES
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.machines.tpu.runs.chains import given_to
from tpusim.machines.tpu.runs.prepared import as_floats
from tpusim.machines.tpu.schedule.joined import Joint, ReadOutcomes, linked, placed, unfit
from tpusim.machines.tpu.schedule.residence import Residence
from tpusim.machines.tpu.schedule.scheduler import program_of
from tpusim.network.ops.elementwise import Div, Rdiv, Sqrt
from tpusim.network.ops.fused import Fused
from tpusim.network.ops.op import OFMAP, Op, Shape
from tpusim.numerics.element_types import EXACT_FLOAT32, F32
from tpusim.reference import Tensor

NUMBERS = among(SMALL, SMALL, SMALL, *(numbers_of(dtype, "any") for dtype in ("f32", "f32", "bf16", "int8")))
NEAR_ZERO = 64
"""Reals that are handed on are no larger: float32 holds what any op here makes of them."""
MOST_WORK = 600
"""Cycles of all layers, about, and of the first a third: longer ones cost most of the time and show nothing more."""
MOST_MACS = 20
"""Of a layer, for each PE."""
MOST_TRANSFERRED = 200
"""Cycles of all transfers of a chain, about, on the slowest HBM that it is given."""
SPEEDS = tuple(speed * 10**9 for speed in (1, 7, 64, 1000, 5000))
LATENCIES = (200_000, 40_000, 3000, 1000)


@dataclass(repr=False)
class Chain:
    """Layers that fit one another, each lowered for the machine, or for the same with less memory or another HBM.

    Arrays with weights of their own take passes as `turn` deals them out, or as lowerings do.
    """

    batch: int
    hardware: Hardware
    numbers: Numbers = SMALL
    turn: Turn | None = None
    layers: list[Op] = field(default_factory=list)
    joints: list[Joint] = field(default_factory=list)

    def __repr__(self) -> str:
        """Without Programs, which would fill pages."""
        joints = zip(self.joints, self.layers, strict=True)
        layers = (f"{joint.name}: {layer} reads {dict(joint.reads)}" for joint, layer in joints)
        return "\n".join([f"batch {self.batch} of {self.numbers} on {self.hardware}", *layers])

    @property
    def made(self) -> dict[str, Shape]:
        """What there is to be read, by the names of layers."""
        return {each.name: each.program.tensor(OFMAP).shape for each in self.joints}

    @property
    def program(self) -> Program:
        """All of them as one."""
        return linked(placed(self.joints, self.hardware), self.hardware)

    def lowered(self, layer: Op, lowering: str) -> Joint:
        """A layer without its name; a machine that has too little memory gets the least that does."""
        try:
            return self._lowered(layer, lowering)
        except CapacityError as error:
            biases = bias_words(layer, self.batch, self.hardware) * self.hardware.word_bytes
            self.hardware = with_capacity(self.hardware, asked_for(error) + biases)
            return self._lowered(layer, lowering)

    def _lowered(self, layer: Op, lowering: str) -> Joint:
        draft, *_ = LOWERINGS[lowering].drafts(layer.core, self.batch, spared(layer, self.batch, self.hardware))
        draft = riding(draft, layer, self.hardware) if isinstance(layer, Fused) else draft

        def finish(program: Program) -> Program:
            program = dealt(program, self.turn) if self.turn else program
            return program_for(self.numbers, layer, self.batch, in_layout(draft.finished(program), self.hardware))

        return nameless(draft, finish)

    def join(self, layer: Op, made: Joint, reads: Mapping[str, ReadOutcomes]) -> None:
        """A layer, if it fits those before. What is transformed before it begins, none of these has made."""
        for each in (reads, {}):
            joint = made._replace(name=f"l{len(self.joints)}", reads=each)
            if not unfit(joint, self.joints, self.hardware):
                self.layers.append(layer)
                self.joints.append(joint)
                return


def nameless(draft: Draft, finish: Callable[[Program], Program] | None = None) -> Joint:
    """A layer that reads nothing yet."""
    finish = finish or draft.finished
    return Joint("", finish(program_of(draft.units)), {}, units=draft.units, finish=finish)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Three layers to six, most of which read others, on a machine whose HBM is so fast that it is over soon."""
    hardware, turn = in_lanes(draw(machines_of_all_kinds(8, among(1, 2, 4, 4, 8)))), None
    if draw(among(True, False, False)):
        arrays = draw(st.integers(2, 4))
        hardware = with_own_weights(hardware, arrays)
        turn = draw(among(None, by_result(arrays), in_turn(arrays), at_random(arrays, draw(st.integers(0, 99)))))
    word = hardware.vector_memory.word_elements
    # Mostly as many images as fill words: to one array, layers whose words hold other numbers of elements do not fit.
    chain = Chain(draw(among(*range(word // 2 + 1, word + 1), 2 * word, 1)), hardware, draw(NUMBERS), turn)
    count = draw(st.integers(3, 6))
    for _ in range(count + 2):
        if len(chain.layers) < count:
            one_more = repeat if chain.layers and draw(among(True, False, False)) else extend
            one_more(draw, chain)
    suppose(bool(chain.layers))
    while len(chain.layers) < 3:
        repeat(draw, chain)
    chain.hardware = hastened(chain)
    return chain


def in_lanes(hardware: Hardware) -> Hardware:
    """The machine without banks for the ifmap."""
    memory = hardware.vector_memory.model_copy(update={"organization": "lanes"})
    return with_resident_taps(hardware.model_copy(update={"vector_memory": memory}))


def repeat(draw: st.DrawFn, chain: Chain) -> None:
    """A layer that is there, once more."""
    at = draw(st.integers(0, len(chain.layers) - 1))
    join(draw, chain, chain.layers[at], chain.joints[at], {})


def join(draw: st.DrawFn, chain: Chain, layer: Op, made: Joint, reads: Mapping[str, ReadOutcomes]) -> None:
    """A layer, if there is time for it and its Program fits those before; what it reads that is not told is drawn."""
    longest = MOST_WORK * min(3, len(chain.layers) + 1) / 3
    if sum(work(each, chain.hardware) for each in (made.program, *(joint.program for joint in chain.joints))) < longest:
        chain.join(layer, made, {**reads_of(draw, chain, layer), **reads})


def extend(draw: st.DrawFn, chain: Chain) -> None:
    """By a layer of which nobody can tell ahead that it would be long."""
    shape, read = draw(sources(chain))
    layer = draw(layers_on(shape))
    if layer.unit == "vector" and len(layer.sources(chain.batch)) - 1 > chain.hardware.vector_unit.scalar_words:
        return
    if layer.macs(chain.batch) > MOST_MACS * chain.hardware.pes:
        return
    names = lowerings_of(layer.core) - {"indirect"} if layer.unit == "array" else {meant(layer, "")}
    names -= {"vector"} if isinstance(layer, Fused) else set()
    made = chain.lowered(layer, draw(among(*sorted(names))))
    join(draw, chain, layer, made, read_of(layer, chain.batch, shape, read))


@st.composite
def sources(draw: st.DrawFn, chain: Chain) -> tuple[Shape, ReadOutcomes | None]:
    """What the next layer reads, and its shape: what one layer before has made, or several, side by side or of each
    place; some of what one has made; or what nobody has.
    """
    made = chain.made
    way = draw(among("one", "one", "one", "beside", "placed", "part", "none")) if made else "none"
    if way == "none":
        return draw(maps(chain.batch)), None
    one = draw(among(*made))
    first, *rest = made[one]
    if way == "part":
        return draw(maps(chain.batch)), ReadOutcomes((one,), False)
    alike = [name for name, shape in made.items() if [*shape[1:]] == rest and (way == "beside" or shape[0] == first)]
    other = draw(among(*alike))
    if way == "one" or other == one:
        return made[one], ReadOutcomes((one,), way != "placed", way == "placed")
    if way == "placed":
        return made[one], ReadOutcomes((one, other), False, True)
    return (first + made[other][0], *made[one][1:]), ReadOutcomes((one, other))


def read_of(layer: Op, batch: int, shape: Shape, read: ReadOutcomes | None) -> dict[str, ReadOutcomes]:
    """How a layer reads its ifmap, whose elements may be moved to be rows."""
    if read is None:
        return {}
    return {"ifmap": read if layer.reads(batch)["ifmap"] == shape else ReadOutcomes(read.names, False)}


def reads_of(draw: st.DrawFn, chain: Chain, layer: Op) -> dict[str, ReadOutcomes]:
    """Of each tensor that a layer reads mostly a map of its shape, if one was made."""
    found = {}
    for name, shape in layer.reads(chain.batch).items():
        alike = [each for each, other in chain.made.items() if other == shape]
        if alike and draw(among(True, True, True, False)):
            found[name] = ReadOutcomes((draw(among(*alike)),))
    return found


def work(program: Program, hardware: Hardware) -> float:
    """Cycles that a layer takes for all but the bytes that it moves, if nothing goes on at once."""
    period = program.frame(hardware).period
    passes = (hardware.lanes + period * (1 + each.words / hardware.array.count) for each in program.streams)
    vectors = (each.words * each.beat(program.word_fill, hardware).period for each in program.vectors)
    moved = (each.conversion_cycles(hardware) for each in program.rows if isinstance(each, Transfer))
    return sum(passes) + sum(vectors) + sum(moved) + sum(getattr(each, "delay", 0) for each in program.rows)


def hastened(chain: Chain) -> Hardware:
    """The machine with an HBM that takes no longer for the transfers of a chain than MOST_TRANSFERRED."""
    moved = [step for each in chain.joints for step in each.program.rows if isinstance(step, Transfer)]
    hbm = chain.hardware.hbm
    least = max(hbm.bandwidth_bytes_per_s, sum(step.hbm_bytes for step in moved) * 10**9 // MOST_TRANSFERRED)
    most = min(hbm.latency_ps, MOST_TRANSFERRED * 2000 // len(moved))
    update = {
        "bandwidth_bytes_per_s": next((each for each in SPEEDS if each >= least), SPEEDS[-1]),
        "latency_ps": next((each for each in LATENCIES if each <= most), LATENCIES[-1]),
    }
    return chain.hardware.model_copy(update={"hbm": hbm.model_copy(update=update)})


# ---- values


class Computed(NamedTuple):
    """A layer, what it was given, and what it has written, by the names of its tensors."""

    layer: Op
    read: dict[str, Tensor]
    written: dict[str, Tensor]


class Values(NamedTuple):
    """What the layers of a chain are given, and their Program, which hands on what they read of one another.

    A tensor that is, element for element, what a layer before has made is handed on if what comes of it can be checked:
    whole numbers whose sums float32 holds, and float32 of which no op makes what is beyond it. The bound of a layer is
    that of the operands which it gets, so it is checked against what the machine made of the layers before. Nobody
    rounds sums to the bytes or the bfloat16 that the next layer reads: of these types each layer is given operands of
    its own.
    """

    chain: Chain
    program: Program
    operands: list[dict[str, Tensor]]

    @classmethod
    def of(cls, chain: Chain, program: Program, found: Residence | None = None) -> Values:
        """`program` is that of the chain. Of what stays on chip, as `found`, all readers find the same there."""
        drawn = [
            as_floats(chain.numbers.operands(layer, chain.batch, seed=at)) for at, layer in enumerate(chain.layers)
        ]
        shared = given_to(found, chain.layers) if found else {}
        given = [
            {name: drawn[shared[at, name][0]][shared[at, name][1]] if (at, name) in shared else each
             for name, each in mine.items()}
            for at, mine in enumerate(drawn)
        ]  # fmt: skip
        apart: frozenset[str] = frozenset()
        while True:
            values, more = cls._of(chain, program, given, apart)
            if more <= apart:
                return values
            apart |= more

    @classmethod
    def _of(
        cls, chain: Chain, program: Program, given: list[dict[str, Tensor]], apart: frozenset[str]
    ) -> tuple[Values, frozenset[str]]:
        """Those where no reader of outcomes `apart` finds what was made; and the outcomes that stay and cannot be."""
        made, instead, rounded = dict[str, Tensor](), set[str](), set[str]()
        handed = {each.tensor: each for each in program.handed}
        operands = []
        for layer, joint, own in zip(chain.layers, chain.joints, given, strict=True):
            mine, inexact = dict(own), not layer.exact
            for name in mine:
                each = handed.get(f"{joint.name}.{name}")
                source = each.sources[0] if each and each.same else ""
                known = source and {**mine, name: made[source]}
                near = source in rounded
                if known and source not in apart and is_known(layer, known, chain.numbers, name, near):
                    mine[name] = made[source]
                    inexact |= near
                elif each:
                    handed[each.tensor] = replace(each, same=False)
                    instead |= {source} if program.tensor(each.tensor).place == LANES else set()
            operands.append(mine)
            made[f"{joint.name}.{OFMAP}"] = expected(layer, mine).astype(np.float32)
            rounded |= {f"{joint.name}.{OFMAP}"} if inexact else set()
        values = cls(chain, replace(program, handed=tuple(handed.values())), operands)
        return values, frozenset(instead)

    @property
    def sources(self) -> dict[str, str]:
        """What is handed on, by the names that it has."""
        return {each.tensor: each.sources[0] for each in self.program.handed if each.same}

    @property
    def given(self) -> dict[str, Tensor]:
        """By the names of the joined Program, all that is not handed on."""
        handed = self.sources
        layers = zip(self.chain.joints, self.operands, strict=True)
        named = {f"{joint.name}.{name}": each for joint, mine in layers for name, each in mine.items()}
        return {name: each for name, each in named.items() if name not in handed}

    def computed(self, written: Mapping[str, Tensor]) -> Iterator[Computed]:
        """Layer by layer, of all that was written."""
        handed = {name: written[source] for name, source in self.sources.items()}
        for layer, joint, mine in zip(self.chain.layers, self.chain.joints, self.operands, strict=True):
            own, program = joint.name, joint.program
            read = {name: handed.get(f"{own}.{name}", each) for name, each in mine.items()}
            yield Computed(layer, read, {name: written[f"{own}.{name}"] for name in program.written})


_DIVISORS = {Div: "other", Rdiv: "ifmap"}
"""What must not be zero, as much of what layers make is."""


def is_known(layer: Op, operands: Mapping[str, Tensor], numbers: Numbers, name: str, near: bool) -> bool:
    """Whether it can be checked what a layer makes of operands of which `name` is what another has made, or what the
    other has made is only `near` that.
    """
    if numbers.kind not in (None, F32) or name == _DIVISORS.get(type(layer)) or isinstance(layer, Sqrt):
        return False
    largest = [max(1.0, float(np.abs(each).max())) for each in operands.values()]
    if numbers.kind is F32 or not layer.exact:
        return max(largest) <= NEAR_ZERO
    return not near and is_whole(operands[name]) and prod(largest) * layer.terms(1) < EXACT_FLOAT32


def is_whole(values: Any) -> bool:
    """Whether no number of them has a fraction."""
    return bool((values == np.rint(values)).all())
