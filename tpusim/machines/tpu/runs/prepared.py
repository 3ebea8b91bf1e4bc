"""A layer made ready for a TPU: its Program; of blocks that are left open (`mapping.search: simulate`) the one that
simulation finds fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpusim.base.imports import need
from tpusim.base.words import counted
from tpusim.machines.lowered import Account, Cycle, Lowered, Phases, Told
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import Recording
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.registry import drafts_of
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Explanation, Program
from tpusim.machines.tpu.runs.account import account_of, wanted_bytes
from tpusim.machines.tpu.runs.phases import phases_of
from tpusim.network.ops.op import Op

if TYPE_CHECKING:
    from tpusim.machines.tpu.datapath.memories import Values
    from tpusim.machines.tpu.runs.parts import ProgramInParts
    from tpusim.reference import Operands, Tensor

CLOSE = 0.03
"""What takes at most this much more than any way still untried must take is fast enough: no other is tried."""

PATIENCE, LONG_ENOUGH = 3, 500
"""After so many ways in a row that are no faster, and have so many steps together, no other is tried."""


@dataclass(frozen=True)
class Prepared(Lowered):
    """A Program for a machine, which all layers of a shape share, and its time from the event engine.

    `lowering` is the one that made it, of a `draft`; a Program that was written by hand has none.
    """

    program: Program
    explanation: Explanation
    hardware: Hardware
    lowering: str
    draft: Draft | None = None

    def with_told(self, told: Mapping[str, str], choices: Mapping[str, int | str]) -> Prepared:
        """The same, with more to tell of how it was lowered."""
        old = self.explanation
        explanation = replace(old, aspects={**old.aspects, **told}, choices={**old.choices, **choices})
        more = replace(self, explanation=explanation)
        # Timed already: a copy would be timed again.
        vars(more)["timing"] = self.timing
        return more

    def timed(self) -> Timing:
        """From event to event."""
        return event.run(self.program, self.hardware)

    @cached_property
    def wanted_bytes(self) -> int:
        """Bytes of the elements that all transfers move; 0 where no banks are modelled."""
        return wanted_bytes(self.program, self.hardware)

    def program_for(self, number: np.dtype[Any]) -> Program:
        """The Program, for values that are added in such numbers."""
        return replace(self.program, doubles=True) if number == np.float64 else self.program

    def stepped(
        self, operands: Callable[[], Operands], number: np.dtype[Any], told: Told
    ) -> tuple[Timing, Mapping[str, Tensor]]:
        """Every register in every cycle, values with them."""
        need_numba()
        from tpusim.machines.tpu import register

        return register.run(self.program_for(number), self.hardware, as_floats(operands()), told)

    def account(self, layer: Op, batch: int, timing: Timing) -> Account:
        """All that is counted."""
        return account_of(self, layer, batch, timing)

    def lane_contents(self, tensor: str, operands: Operands, empty: float) -> Values:
        """As fills leave it; what a later one puts over an earlier one is what stands there."""
        from tpusim.machines.tpu.datapath.memories import filled

        return filled(self.program, self.hardware, tensor, operands, empty)

    def workspace_bytes(self, own: Collection[str]) -> int:
        """Of what it writes to read it again, and of what the lowering brings."""
        element_bytes = self.hardware.vector_memory.element_bytes
        return sum(each.bytes(element_bytes) for each in self.program.tensors if each.name not in own)

    def phases(self, array: Mapping[str, int]) -> Phases:
        """By what the event engine notes of the first pass and the last spill."""
        return phases_of(event.logged(self.program, self.hardware), array, self.hardware.lanes)

    def recorded(self) -> Recording:
        """What every unit does when."""
        return event.record(self.program, self.hardware)

    def lane_by_lane(self, operands: Operands) -> Callable[[int, Told], Iterator[Cycle]]:
        """Every lane in every cycle, from the register engine."""
        need_numba()
        from tpusim.machines.tpu import register

        return partial(register.trace, register.RegisterMachine(self.program, self.hardware, as_floats(operands)))

    def in_parts(self, number: np.dtype[Any]) -> ProgramInParts:
        """What the data path writes, spill by spill."""
        from tpusim.machines.tpu.runs.parts import ProgramInParts

        return ProgramInParts(self.program_for(number), self.hardware)


def need_numba() -> None:
    """The register engine is an extra, and imported only when somebody asks for it.

    Raises:
        InputError: when Numba, or what it needs, cannot be imported; says how to install it for this Python.
    """
    need("the register engine", "Numba", "numba")


def as_floats(operands: Operands) -> dict[str, Tensor]:
    """The same numbers as the register engine moves them."""
    return {name: each.astype(np.float32) for name, each in operands.items()}


def prepared(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Prepared:
    """The Program of a layer by a lowering; of several drafts the one of the fewest cycles, of equals the first.

    Raises:
        CapacityError: when nothing fits the machine; names the layer.
        CheckFailed, DeadlockError: when a draft fails otherwise as it is timed.
    """
    drafts = drafts_of(layer, batch, hardware, lowering)
    return _of_drafts(drafts, lambda each: _in_scratch(Prepared(*each.lower(), hardware, lowering, each)))


def _in_scratch(ready: Prepared) -> Prepared:
    """With what a layer makes for itself, and what it reads again, in the scratch memory, if there is one and that
    takes fewer cycles. Of layers that overlap, only all together know what has room.
    """
    hardware = ready.hardware
    if hardware.scratch_memory is None or hardware.sequencer.between_layers != "drain":
        return ready
    from tpusim.machines.tpu.schedule.joined import Joint
    from tpusim.machines.tpu.schedule.residence import in_scratch, prefetched

    (own,) = in_scratch([Joint("", ready.program, {})], hardware)
    found = replace(ready, program=prefetched(own.program, hardware))
    names = [each.name.partition(" ")[0] for each in found.program.tensors if each.scratch is not None]
    if not names or found.timing.cycles >= ready.timing.cycles:
        return ready
    return found.with_told({"scratch": f"it holds {', '.join(names)}"}, {})


def _of_drafts(drafts: Sequence[Draft], make: Callable[[Draft], Prepared]) -> Prepared:
    """The fastest of a lowering's drafts, which are tried as long as another may be clearly faster; or the only one."""
    if len(drafts) == 1:
        return make(drafts[0])
    tried: list[_Tried] = []

    def promising() -> Iterator[Prepared]:
        for draft in drafts:
            if tried and _enough(tried, draft.least):
                break
            made = make(draft)
            tried.append(_Tried(made.timing.cycles, len(made.program.steps)))
            yield made
            del made

    best = min(promising(), key=lambda each: each.timing.cycles)
    return _told(best, drafts, [each.cycles for each in tried])


class _Tried(NamedTuple):
    """What a draft takes, and how long it is."""

    cycles: int
    steps: int


def _enough(tried: Sequence[_Tried], least: float) -> bool:
    """Whether none that is left, of which each takes `least` cycles or more, is worth a try."""
    fastest = min(each.cycles for each in tried)
    since = tried[next(at for at, each in enumerate(tried) if each.cycles == fastest) + 1 :]
    patient = len(since) < PATIENCE or sum(each.steps for each in since) < LONG_ENOUGH
    return fastest <= least * (1 + CLOSE) or not patient


def _told(best: Prepared, drafts: Sequence[Draft], tried: Sequence[int]) -> Prepared:
    """With what is told of the search. The first draft is the choice of the estimate."""
    first, fastest, least, estimate = tried[0], min(tried), drafts[0].least, drafts[0].estimate()
    own = "it is this one" if first == fastest else f"this one takes {fastest:,} ({fastest / first - 1:+.1%})"
    words = (
        f"by simulation, {counted(len(tried), 'block')} timed: the estimate's choice, expected to take "
        f"{round(estimate):,} cycles, takes {first:,} ({first / estimate - 1:+.1%}); {own}; no other that was ranked "
        f"can take fewer than {round(least):,} ({least / fastest - 1:+.1%})"
    )
    numbers = {
        "timed": len(tried),
        "estimated_cycles": round(estimate),
        "first_cycles": first,
        "least_cycles": round(least),
    }
    return best.with_told({"search": words}, numbers)
