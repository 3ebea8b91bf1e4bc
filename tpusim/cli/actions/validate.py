"""The action of `tpusim validate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

from tpusim.api.pictures import write_pictures
from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.files import probe
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.names import GPU_SETS, MEMORY_SETS, NETWORK_SETS
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.report.tables.validation import SURVEYED, surveyed, validated, with_collectives, with_pods
from tpusim.study.validation.cases import NETWORKS, PASSES, WORDS, NumberSet, tables_from
from tpusim.study.validation.chips import chip_sets
from tpusim.study.validation.collectives import COLLECTIVES, collective_sets, compare_collectives, compiled_collectives
from tpusim.study.validation.comparison import Comparison, Validation, compare
from tpusim.study.validation.fused import FUSED, fused_sets
from tpusim.study.validation.generations import GENERATIONS, code_of, generation_sets
from tpusim.study.validation.memory import compare_memory, memory_sets, wanted_streams
from tpusim.study.validation.operations import STEP
from tpusim.study.validation.pods import PODS, compare_pods, pod_sets, shared_runs
from tpusim.study.validation.sets import GRADIENT_SETS, deepbench_sets, number_sets, step_sets
from tpusim.study.validation.tokens import LLM, token_sets

USUAL = "channel_first"
"""The lowering of sets that name none."""


def compare_and_report(
    names: Sequence[str],
    lowering: str | None,
    changes: Sequence[str],
    json: str | None,
    out: Path | None,
    kinds: Sequence[str],
    truth: Path | None = None,
) -> None:
    """Simulate the sets of these names or words, and report them: as JSON, in tables, drawn into `out`.

    Without a name, a row for each TPU and kind tells what was measured and scheduled. With a lowering and no name, sets
    of TPU v2 and measurements on TPU v3 are compared, but for those that have a lowering of their own. Tables in
    `truth` take the place of the shipped ones.
    """
    with tables_from(truth):
        surveys = not names and not lowering
        sets = survey() if surveys else [each for each in _sets(names) if names or each.lowering == USUAL]
        memory = [each for each in sets if each.name in memory_sets()]
        linked = [each for each in sets if each.name.startswith(COLLECTIVES)]
        pods = [each for each in sets if each.name.startswith(PODS)]
        others = [each for each in sets if each not in (*memory, *linked, *pods)]
        plan = Validation(others, changes if others and not (memory or linked or pods) else [], lowering)
        if changes and sum(map(bool, (memory, linked, pods, others))) > 1:
            raise InputError("--set: changes machines, DRAMs or slices; ask for the sets of one of them at a time")
        output = JsonOutput(json)
        for stem in dict.fromkeys(each.picture for each in sets) if out else ():
            probe(Path(str(out)) / f"{stem}.png", make_folder=True)
        with Meter(len(plan.simulations)) as meter:
            comparisons = compare(plan, meter.show) if plan.sets else []
        for those, runs, compared in (
            (memory, wanted_streams, compare_memory),
            (linked, list, compare_collectives),
            (pods, shared_runs, compare_pods),
        ):
            if those:
                with Meter(len(runs(those))) as meter:
                    comparisons += compared(those, changes, meter.show)
        told = surveyed(comparisons, BY_NAME) if surveys else validated(comparisons)
        if linked:
            told = with_collectives(told, comparisons, compiled_collectives())
        if pods:
            told = with_pods(told, comparisons)
    output.deliver(told, *([partial(_draw, comparisons, out, kinds, output.words_to)] if out else []))


BY_NAME = (
    "v3_tiles and models_measured (tiles and networks that chips ran), llm (experts and attentions that chips ran, "
    "code of tokens), fused (code of blocks), estimated (prices of the compiler for TPU v2), passes, training_step, "
    "deepbench (a GPU), dram, collectives (of several chips), pods (steps and tokens of networks that chips share)"
)
"""What is shown by its name alone, as it takes longer than all the rest or is about something else."""
_LONG = ("v3_tiles", "models_measured")


def survey() -> list[NumberSet]:
    """All sets of what was measured or scheduled, but for those of `BY_NAME`; nothing is simulated twice, for blocks of
    the compiler.
    """
    known = (number_sets() | generation_sets() | chip_sets()).values()
    kept = (each for each in known if each.status in SURVEYED and each.unit != PASSES and each.group not in _LONG)
    return [replace(each, cases=tuple(replace(case, their_block=()) for case in each.cases)) for each in kept]


def _sets(names: Sequence[str]) -> list[NumberSet]:
    def later(begin: str, read: Callable[[], Mapping[str, NumberSet]]) -> dict[str, NumberSet]:
        """Sets that take a while to read, as a step of a network does, where one of them is asked for."""
        return {**read()} if any(name.startswith(begin) for name in names) else {}

    tpus = number_sets() | memory_sets()
    of_generations = generation_sets() | chip_sets() | later(FUSED, fused_sets) | later(LLM, token_sets)
    steps, links = later(STEP, step_sets), later(COLLECTIVES, collective_sets)
    meshed = later(PODS, pod_sets)
    known = tpus | deepbench_sets() | of_generations | steps | links | meshed
    groups = {word: [each.name for each in tpus.values() if each.status == word] for word in WORDS}
    kinds = {GRADIENT_SETS: GRADIENT_SETS, NETWORK_SETS: NETWORKS}
    groups |= {name: [each.name for each in known.values() if each.kind == kind] for name, kind in kinds.items()}
    groups |= {STEP: [*steps], COLLECTIVES: [*links], PODS: [*meshed]}
    groups |= {MEMORY_SETS: [*memory_sets()], GPU_SETS: [*deepbench_sets()]}
    groups |= _of_generations(of_generations)
    choices = {name: [name] for name in known} | groups
    for name in names:
        if name not in choices:
            guess = did_you_mean(name, choices) or ";"
            raise InputError(f"--set-of-numbers: no set {name!r}{guess} there is {', '.join(choices)}")
    chosen = dict.fromkeys(each for name in names for each in choices[name])
    if names and not chosen:
        raise InputError(f"--set-of-numbers: the tables have no rows of {', '.join(names)}")
    return [known[name] for name in chosen] or [*number_sets().values()]


def _of_generations(sets: Mapping[str, NumberSet]) -> dict[str, list[str]]:
    """What stands for several sets of all TPUs: a generation's code and estimates, passes, and chips."""
    code = [*map(code_of, GENERATIONS)]
    groups = {group: [name for name, each in sets.items() if each.group == group] for group in _GROUPS}
    # Sets of tokens are asked for by their own name alone.
    chips = [name for name, each in sets.items() if each.measured and each.group != LLM]
    told = [name for group in code for name in groups[group]]
    return groups | {"chips": chips, "generations": [*told, *chips]}


_GROUPS = (
    *map(code_of, GENERATIONS), PASSES, LLM, "v3_tiles", "v6e_measured", "v4_measured", "v7x_measured",
    "models_measured", FUSED,
)  # fmt: skip
"""The groups of these sets (`NumberSet.group`), also of tables without rows."""


def _draw(comparisons: Sequence[Comparison], out: Path, kinds: Sequence[str], stream: TextIO) -> None:
    # Imported here, because matplotlib takes longer to import than a comparison of one set takes.
    from tpusim.report.plots.paper import plots

    for path in write_pictures(out, plots(comparisons), kinds):
        say(stream, str(path))
