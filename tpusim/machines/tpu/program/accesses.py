"""Port accesses that a Program's addresses imply: padding and lanes without work make none."""

from __future__ import annotations

from tpusim.machines.tpu.program.steps import FilterFill, IfmapFill, Preload, Program, Spill, Stream


def accesses(program: Program, word_elements: int) -> tuple[int, int]:
    """(reads, writes) in words over all lanes."""
    reads = writes = 0
    # By identity: passes of a kind share their pattern, and hashing one costs more than the rest.
    ifmap: dict[int, int] = {}
    for step in program.steps:
        match step:
            case Stream():
                if id(step.reads) not in ifmap:
                    ifmap[id(step.reads)] = sum(group.lanes * group.pattern.accesses for group in step.reads)
                reads += ifmap[id(step.reads)] + step.words * step.cols * step.accumulate
                writes += step.words * step.cols
            case Preload():
                reads += -(-step.rows // word_elements) * step.cols
            case Spill():
                reads += step.lane_words
            case IfmapFill() | FilterFill():
                writes += step.lane_words
    return reads, writes
