"""A collective checked: every element of every chip against the definition, and all engines against one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpusim.base.errors import CheckFailed, InputError, Problem
from tpusim.machines.tpu.slices import event, register
from tpusim.machines.tpu.slices.algorithms.registry import exchange_of
from tpusim.machines.tpu.slices.exchange import messages_of
from tpusim.machines.tpu.slices.summary import CollectiveTime
from tpusim.machines.tpu.slices.values import Memories, executed
from tpusim.reference.collectives import expected

MOST_CHECKED = 2**20
"""Elements of all chips together up to which values are computed, and compared."""
MOST_CHIPS = 16
"""Chips that an engine steps through in every cycle, at most."""
_MOST_CYCLES = 2_000_000
"""Cycles that it steps through: some seconds to a minute."""


@dataclass(frozen=True, eq=False)
class CheckedCollective:
    """Values of a collective: the elements of all chips that were compared, and those that were wrong; and the engines
    that kept the same time.
    """

    elements: int
    wrong: int
    engines: tuple[str, ...]


def check(made: CollectiveTime, engines: Sequence[str] = ()) -> CheckedCollective | None:
    """Compute a collective on every chip, and compare each element with the definition; None where that is too much.

    `engines` may be "simpy" and "register", which must come to the same cycle.

    Raises:
        InputError: too many chips or elements for the engines that are asked for.
        CheckFailed: an engine comes to another cycle.
    """
    question = made.question
    exchange = exchange_of(question.collective, made.algorithm)
    chips, elements = len(exchange.group.sharing), question.collective.elements
    if chips > MOST_CHIPS or chips * elements > MOST_CHECKED:
        if engines:
            says = f"{chips:,} chips of {elements:,} elements are too much; it takes {MOST_CHIPS} chips, and"
            raise InputError(Problem(f"{says} {MOST_CHECKED:,} elements of all together", f"engine {engines[0]}"))
        return None
    if "register" in engines and made.cycles > _MOST_CYCLES:
        says = f"{made.cycles:,} cycles are too many to step through; it takes {_MOST_CYCLES:,}: write fewer bytes"
        raise InputError(Problem(says, "engine register"))
    every = messages_of(exchange, question.rates, question.element_bytes, every=True)
    random = np.random.default_rng(0)
    operands = {place: random.integers(-8, 9, elements).astype(np.float64) for place in every.places}
    log = event.run(every)
    results = executed(exchange, every, log, operands)
    found = {"event": log.cycles}
    if "simpy" in engines:
        # Imported here, as hardly anybody asks for it.
        from tpusim.machines.tpu.slices import processes

        found["simpy"] = processes.run(every).cycles
    if "register" in engines:
        memories = Memories(exchange, operands)
        found["register"] = register.run(exchange, every, memories).cycles
        results = {place: memories.result(place) for place in every.places}
    found["one chip of each kind"] = made.cycles
    if len({*found.values()}) > 1:
        told = ", ".join(f"{name} {cycles:,}" for name, cycles in found.items())
        raise CheckFailed(f"engines come to different cycles: {told}")
    wrong = 0
    for first in (place for place in operands if exchange.group.rank(place) == 0):
        members = sorted(exchange.group.members(first), key=exchange.rank)
        wanted = expected(question.op, [operands[place] for place in members])
        wrong += sum(int((results[place] != want).sum()) for place, want in zip(members, wanted, strict=True))
    return CheckedCollective(sum(len(each) for each in results.values()), wrong, ("event", *engines))
