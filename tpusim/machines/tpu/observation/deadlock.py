"""What a deadlock looks like in words."""

from __future__ import annotations

from collections.abc import Sequence

from tpusim.machines.tpu.program.program import Program


def who_waits(program: Program, stuck: Sequence[int]) -> str:
    """How many steps never finish, and for what each of the first of them waits; `stuck` are their indices."""
    rows = (f"step {step} ({_name(program, step)}) waits for {_blockers(program, step, stuck)}" for step in stuck[:4])
    return f"{len(stuck)} steps never finish: " + "; ".join(rows)


def _name(program: Program, step: int) -> str:
    return program.steps[step].label


def _blockers(program: Program, step: int, stuck: Sequence[int]) -> str:
    still = [other for other in program.steps[step].after if other in stuck]
    return ", ".join(f"step {other} ({_name(program, other)})" for other in still) or "its unit's turn"
