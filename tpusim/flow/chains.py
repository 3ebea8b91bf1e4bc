"""Layers that overlap: those of a chain timed as one, each with its share and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError, Problem, failures_named
from tpusim.flow.account import layer_result
from tpusim.flow.engines import ENGINES, Begun, Outcome, Task, check_agreement, memory_needed, values_of, verdict_on
from tpusim.machines.family import Machine
from tpusim.machines.lowered import Chain, Timed
from tpusim.numerics.equality import Verdict
from tpusim.result.records import LayerResult

if TYPE_CHECKING:
    from tpusim.reference import Operand


def overlapping(chain: Chain[Task], machine: Machine, engine: str) -> Iterator[Begun]:
    """Time the layers of a chain.

    Raises:
        InputError: the register engine is asked for the values of a network, or there is too little memory for it.
        CheckFailed: with engine "both", the two disagree.
        DeadlockError: steps wait for one another for ever; all of them name the layers.
    """
    for at, (task, (timing, verdict)) in enumerate(zip(chain.members, _outcomes(chain, engine), strict=True)):
        yield Begun(task.layer, partial(_result, chain, machine, at, timing, verdict))


def _result(
    chain: Chain[Task], machine: Machine, at: int, timing: Timed, verdict: Callable[[], Verdict]
) -> LayerResult:
    task = chain.members[at]
    found = layer_result(task.layer, task.batch, machine, chain.among(at), timing, verdict())
    return replace(found, hidden_cycles=task.prepared.timing.cycles - timing.cycles, **vars(chain.saved(at)))


def _outcomes(chain: Chain[Task], engine: str) -> Iterator[Outcome]:
    """For each layer its share of the time, and what holds its values against the reference."""
    if len(chain.members) == 1:
        yield from map(ENGINES[engine], chain.members)
    elif engine == "event":
        for at, (task, share) in enumerate(zip(chain.members, chain.timing.layers, strict=True)):
            yield share, values_of(replace(task, prepared=chain.alone(at)))
    else:
        yield from _registered(chain, engine)


def _registered(chain: Chain[Task], engine: str) -> Iterator[Outcome]:
    """Time and values of all layers from one run of the second interpreter; each has operands of its own."""
    tasks = chain.members
    if any(task.journey for task in tasks):
        problem = "the register engine runs layers that overlap on random operands"
        raise InputError(Problem(f"{problem}; leave --engine register out for values of the network", chain.name))
    operands = _operands(chain)
    number = max((task.numbers.number(task.layer, task.batch) for task in tasks), key=lambda each: each.itemsize)

    def told(cycles: int) -> None:
        tasks[0].doing(f"{cycles:,} cycles of {chain.name}")

    with failures_named(chain), memory_needed(chain):
        timing, written = chain.stepped(operands, number, told)
    if engine == "both":
        check_agreement(f"layers {chain.name}", chain.timing, timing)
    for at, (task, made, share) in enumerate(zip(tasks, written, timing.layers, strict=True)):
        yield share, verdict_on(task, partial(operands.__getitem__, at), made)


def _operands(chain: Chain[Task]) -> list[dict[str, Operand]]:
    """Operands of each layer; readers of what stays on chip find the same there."""
    operands = [dict(task.operands()) for task in chain.members]
    found = {(at, name): operands[giver][tensor] for (at, name), (giver, tensor) in chain.given.items()}
    for (at, name), each in found.items():
        operands[at][name] = each
    return operands
