"""The JSON of commands but `tpusim run`, key by key: a JSON schema of each, which the reference and tests read.

What a key means stands here. `docs.columns.run_schema` tells the keys that are those of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import tpusim
from docs.columns import figure_meaning, run_schema
from tpusim.machines.lowered import Phases
from tpusim.result.vocabulary.figures import COLUMNS, LAYER
from tpusim.result.vocabulary.states import STATES

Schema = dict[str, Any]
Keys = Mapping[str, tuple[Schema, str]]
"""By key the schema of its value, and what the key means."""

TEXT, WHOLE, NUMBER, YES = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
ANY: Schema = {"type": "object"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _by_name(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _of(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _figures(*names: str) -> Keys:
    """Figures of a layer, each a number, with what the vocabulary says of it."""
    known = {**LAYER, **COLUMNS}
    return {name: (NUMBER, figure_meaning(known[name])) for name in names}


def _held(about: str, keys: Keys, sometimes: str = "") -> Schema:
    """The schema of a mapping with these keys, of which `sometimes` names those that may be missing."""
    return {
        "type": "object",
        "description": about,
        "properties": {key: {**schema, "description": meaning} for key, (schema, meaning) in keys.items()},
        "required": [key for key in keys if key not in sometimes.split()],
        "additionalProperties": False,
    }


MACHINE = (ANY, "the machine, as its [file](machine.md) would have it")
CHANGES = (_by_name(TEXT), "fields that were set beside its file, by path, as they were written")
SIDES = _listed(_or_null(NUMBER))
"""A figure of A and of B; null where one of them lacks what the figure is of."""
MEASURED: Keys = {
    "cycles": (SIDES, "cycles in A and in B"),
    "time_us": (SIDES, "time in A and in B, in microseconds"),
    "macs": (SIDES, "multiply-accumulates in A and in B"),
    "pe_utilization": (SIDES, "PE utilisation in A and in B"),
    "ratio": (_or_null(NUMBER), "cycles of B over those of A; null where one of them lacks it"),
    "mac_ratio": (_or_null(NUMBER), "cycles by the MAC of B over those of A; null where there are no MACs"),
}


def _explain() -> Schema:
    layer = run_schema()["$defs"]
    phases: Keys = {
        "busy": (WHOLE, "cycles in which PEs multiply"),
        "first_fill": (WHOLE, "cycles until the first pass or vector step, spent waiting for fills"),
        **{each.name: (WHOLE, f"other cycles in which the array is {STATES[each.name].doing}")
           for each in fields(Phases) if each.name in STATES and each.name != "busy"},
        "drain": (WHOLE, "cycles from the last pass until the last results can be spilled"),
        "spill": (WHOLE, "cycles from then until these are in HBM"),
        "skew": (WHOLE, "cycles from then until the last lane is done"),
    }  # fmt: skip
    definitions = {
        "Phases": _held("Cycles of the array; all of them together are those of the layer.", phases),
        "Overlap": _held(
            "A layer between the layer ahead of it and the layer behind it, which overlap.",
            {
                "layers": (TEXTS, "names of the two or three layers"),
                "cycles": (WHOLE, "cycles of these layers together"),
                "hidden_cycles": (WHOLE, "cycles that the layers take less than one by one"),
                "apart": (TEXT, "why the layer does not overlap with the layer ahead; empty where it does"),
                "how": (TEXT, "`sequencer.between_layers` of the machine, or what it is assumed to be"),
                "own_cycles": (WHOLE, "the layer's share of the cycles"),
                "hbm_saved_bytes": (WHOLE, "bytes that need not go through HBM, as something stays on chip"),
                "asked": (YES, "whether the machine's file asks for the overlap"),
            },
        ),
        "Standing": _held(
            "A tiling among all that fit the machine, by their estimates.",
            {
                "estimate": (NUMBER, "cycles that are expected of it"),
                "faster": (WHOLE, "tilings that are expected to take fewer"),
                "tilings": (WHOLE, "all that fit"),
                "first": (ANY, "the tiling that is expected to be fastest, by name, as in `tiling`"),
                "least": (NUMBER, "cycles that are expected of that one"),
            },
        ),
        "Gain": _held(
            "A change, and what the layer gains by it, or the whole network, which tells the first five.",
            {
                "with": (TEXT, "what is made easier"),
                "that_is": (TEXT, "the change, as options set it"),
                "cycles": (NUMBER, "cycles with the change, by the faster of the present plan and another"),
                "gain": (NUMBER, "how many times as fast the layer is, by `per`"),
                "per": (
                    TEXT,
                    "what cycles are counted by where the work changes too: image, row, MAC; else layer, or network",
                ),
                "relieves": (
                    TEXT,
                    "name of the limit that the change relieves, as in `bound_by`; empty of a machine "
                    "of another family than the TPU",
                ),
                "macs": (WHOLE, "multiply-accumulates with the change"),
                "same_plan": (_or_null(NUMBER), "gain with the present plan; null where it does not suit the change"),
                "run_cycles": (WHOLE, "cycles of a run with the change, which chooses its plan anew"),
            },
            "relieves macs same_plan run_cycles",
        ),
        "Untried": _held(
            "A change that could not be tried.", {"with": (TEXT, "what was to be made easier"), "reason": (TEXT, "why")}
        ),
        "LoweringCost": _held(
            "What the layer costs by a lowering, or why it cannot run by it.",
            {
                "lowering": (TEXT, "name of the lowering"),
                "unfit": (TEXT, "why the layer cannot run by the lowering; the other keys are missing then"),
                **_figures("cycles", "time_us", "hbm_read_bytes", "hbm_write_bytes"),
                "workspace_bytes": (WHOLE, "bytes in HBM of tensors beside ifmap, filter and ofmap"),
                **_figures("peak_bytes", "reads", "writes"),
                "units": (_by_name(_by_name(WHOLE)), "cycles of the array, or of another main unit, in each state"),
            },
            "unfit cycles time_us hbm_read_bytes hbm_write_bytes workspace_bytes peak_bytes reads writes units",
        ),
        "CostlyLayers": _held(
            "Equal layers of a network, the first of which was explained.",
            {
                "name": (TEXT, "name of the first"),
                "equal": (TEXTS, "names of all of them, in network order"),
                "op": (TEXT, "kind of operation"),
                "shape": (TEXT, "sizes, as the table of a run has them"),
                "lowering": (TEXT, "lowering by which it ran"),
                "cycles": (WHOLE, "cycles that all of them take in the network"),
                "cycles_of_each": (WHOLE, "cycles of the first by itself"),
                "share": (NUMBER, "share of the network's cycles"),
                "bound_by": (_or_null(TEXT), "what bounds it, as of a layer"),
                "verdict": (TEXT, "what bounds it and what would help, in a sentence"),
                "gains": (_listed(_of("Gain")), "every change that was tried on it, the largest gain first"),
            },
        ),
    }
    keys: Keys = {
        "hardware": MACHINE,
        "changes": CHANGES,
        "workload": (TEXT, "name of the network"),
        "batch": (WHOLE, "images at a time"),
        "lowering": (TEXT, "lowering that was asked for"),
        "cycles": (WHOLE, "of a network: cycles of all layers, or of the step of several chips"),
        "time_us": (NUMBER, "of a network: microseconds of all layers, or of the step"),
        "step": (_of("StepResult"), "of a network that several chips share: its step, as in the JSON of a run"),
        "layers": (WHOLE, "of a network: number of its layers"),
        "kinds": (WHOLE, "of a network: number of kinds of layers; those of a kind are equal"),
        "simulations": (WHOLE, "of a network: simulations that it took"),
        "costly": (_listed(_of("CostlyLayers")), "of a network: the kinds of layers that cost most"),
        "unmoved": (TEXTS, "of a network: changes with which it was not simulated, as they make none of these faster"),
        "layer": (_of("LayerResult"), "the layer as in the JSON of a run"),
        "read_by": (TEXTS, "names of the layers that read the layer's results"),
        "phases": (_of("Phases"), "where the cycles of the array go"),
        "tiling": (ANY, "choices of the lowering by name, such as the rows of a block; each lowering has its own"),
        "rank": (
            _or_null(_of("Standing")),
            "how its tiling stands among all that fit; null where a lowering does not tell",
        ),
        "overlapping": (_or_null(_of("Overlap")), "what overlap with the neighbours saves; null where there are none"),
        "bound_by": (
            _or_null(TEXT),
            "what bounds the layer: array, mapping, ports, banks, hbm, rows, latency, weights, memory, block, "
            "vector_unit, sequencer or input; null where no single thing does",
        ),
        "main_state": (TEXT, "busy, where the array mostly is; else the state that takes most of its other cycles"),
        "agrees": (YES, "whether that state points to the same limit as the gains"),
        "gains": (
            _listed(_of("Gain")),
            "every change that was tried, the largest gain first; of a network on the whole",
        ),
        "untried": (_listed(_of("Untried")), "changes that could not be tried"),
        "lowerings": (_listed(_of("LoweringCost")), "what the layer costs by each lowering, the fastest first"),
    }
    schema = _held(
        "Why a layer, or a network, takes as long as it does. Keys of the other are missing; and of a machine of "
        "another family than the TPU `phases`, `tiling`, `rank`, `main_state` and `agrees`.",
        keys,
        "cycles time_us step layers kinds simulations costly unmoved layer read_by phases tiling rank overlapping "
        "bound_by main_state agrees lowerings",
    )
    # `explain` tells all that a run leaves out where it says nothing.
    for held in layer.values():
        held["required"] = []
    return {**schema, "$defs": {**definitions, **layer}}


def _compare() -> Schema:
    definitions = {
        "Change": _held(
            "An input in which A and B differ.",
            {
                "name": (TEXT, "path of a field of the machine, or name of another input"),
                "before": ({}, "value in A; null where A lacks it"),
                "after": ({}, "value in B; null where B lacks it"),
            },
        ),
        "TotalOfBoth": _held(
            "All layers together.",
            {
                **{key: MEASURED[key] for key in ("cycles", "time_us", "pe_utilization")},
                "ratio": (NUMBER, "cycles of B over those of A"),
                "geometric_mean": (_or_null(NUMBER), "geometric mean of `mac_ratio` over layers that multiply; null "
                                   "where no such layer is in both"),
            },
        ),
        "StepOfBoth": _held(
            "The steps of two runs of networks that several chips share.",
            {
                "chips": (SIDES, "chips in A and in B"),
                "cycles": (SIDES, "cycles of the step in A and in B"),
                "seconds": (SIDES, "seconds of the step in A and in B"),
                "exposed_cycles": (SIDES, "cycles in which a chip waits for collectives in A and in B"),
                "items_per_second": (SIDES, "images or tokens a second in A and in B"),
                "items_per_second_chip": (SIDES, "images or tokens a second a chip in A and in B"),
                "ratio": (NUMBER, "cycles of B over those of A"),
            },
        ),
        "LayerOfBoth": _held(
            "A layer of A, and what corresponds to it in B.",
            {
                "name": (TEXT, "name of the layer"),
                **MEASURED,
                "layers": (WHOLE, "layers that the row holds: the layer and those that ride on its results in one of "
                           "the runs; missing where it is one"),
                "inputs": (_listed(TEXTS), "layers that are read in A, and in B; missing where they are the same"),
            },
            "layers inputs",
        ),
        "Outputs": _held(
            "The check of a run's outputs.",
            {
                "outputs": (WHOLE, "outputs of the run"),
                "checked": (WHOLE, "outputs that were checked"),
                "mismatched": (WHOLE, "outputs that are wrong"),
                "correct": (_or_null(YES), "whether all that was checked is right; null where nothing was checked"),
            },
        ),
        "PointOfBoth": _held(
            "A point of A, of B, or of both.",
            {"settings": (_by_name(TEXT), "the network and the value of each axis, as the sweep wrote them"),
             **MEASURED},
        ),
    }  # fmt: skip
    of_runs: Keys = {
        "changes": (_listed(_of("Change")), "inputs in which the runs differ"),
        "total": (_of("TotalOfBoth"), "all layers together"),
        "step": (_of("StepOfBoth"), "their steps; missing where one of them is of one chip"),
        "layers": (_listed(_of("LayerOfBoth")), "every layer of A and B, in the order of the network"),
        "by_op": (_by_name(_listed(WHOLE)), "by kind of op its cycles in A and in B"),
        "outputs": (_listed(_of("Outputs")), "the check of A's outputs, and of B's"),
    }
    of_sweeps: Keys = {
        "axes": (TEXTS, "axes of the sweeps"),
        "geometric_mean": (
            _or_null(NUMBER),
            "geometric mean of `mac_ratio` over points that multiply; null where no such point is in both",
        ),
        "points": (_listed(_of("PointOfBoth")), "every point of A and B"),
    }
    by_form: Keys = {
        "folds": (WHOLE, "sets of weights that fill the array"),
        "passes": (WHOLE, "passes here, folds times blocks"),
        "scale_sim_cycles": (WHOLE, "cycles by SCALE-Sim's closed form"),
        "no_drain_cycles": (WHOLE, "folds x M + passes x R: what remains of it where no pass waits for a drain"),
        "array_cycles": (WHOLE, "cycles here until the array has no more work"),
        "cycles": (WHOLE, "all cycles here"),
        "ratio": (NUMBER, "all cycles here over those of SCALE-Sim"),
    }
    definitions |= {
        "LayerByForm": _held("A layer by the closed form and here.", {"name": (TEXT, "name of the layer"), **by_form}),
        "AllByForm": _held("All layers that have a closed form.", by_form),
        "ArrayShape": _held("The PEs of the closed form.", {"rows": (WHOLE, "R"), "cols": (WHOLE, "C")}),
    }
    of_forms: Keys = {
        "hardware": MACHINE,
        "workload": (TEXT, "name of the network"),
        "batch": (WHOLE, "images at a time"),
        "array": (_of("ArrayShape"), "PEs"),
        "closed_form": (TEXT, "SCALE-Sim's cycles of a product (M, K) x (K, N)"),
        "by_form": (_listed(_of("LayerByForm")), "every layer that has a closed form"),
        "together": (_of("AllByForm"), "these layers together"),
        "without_form": (TEXTS, "layers that have no closed form"),
    }
    schema = _held(
        "Two runs, or two sweeps, A and B. Of runs there are `changes`, `total`, `layers`, `by_op` and `outputs`; of "
        "sweeps `axes`, `geometric_mean` and `points`; of a network and a closed form the other keys.",
        {**of_runs, **of_sweeps, **of_forms},
        " ".join([*of_runs, *of_sweeps, *of_forms]),
    )
    return {**schema, "$defs": definitions}


def _validate() -> Schema:
    spread = _of("Spread")
    figures: Keys = {
        "name": (TEXT, "name of the set; `--set-of-numbers` takes it"),
        "status": (TEXT, "how the reference's numbers are known: estimated, scheduled, measured or simulated"),
        "kind": (TEXT, "kind of thing that the cases are, such as layers or convolutions"),
        "about": (TEXT, "what the set holds"),
        "hardware": (TEXT, "machine that is simulated"),
        "lowering": (TEXT, "lowering of the cases"),
        "changes": (TEXTS, "changes of the machine that the set makes, as `--set` writes them"),
        "asked": (TEXTS, "what `--set` changed beside them"),
        "unit": (TEXT, "unit of the numbers"),
        "generation": (TEXT, "generation of TPU that the numbers are of; empty where there is none"),
        "cases": (WHOLE, "cases that are compared"),
        "ours": (spread, "errors of tpusim"),
        "with_their_blocks": (_or_null(spread), "errors with the compiler's blocks; null where none are known"),
        "roofline": (spread, "errors of a roofline: the larger of MACs / peak and bytes / bandwidth"),
        "bias": (NUMBER, "mean of the signed errors"),
        "rank_correlation": (_or_null(NUMBER), "Spearman's correlation, 1 where tpusim puts all cases in the order of "
                             "the reference; null where all numbers of either are equal"),
        "equal": (_or_null(WHOLE), "cases of which tpusim has as many passes as the code; null for other units"),
        "first_choice": (_or_null(TEXT), "tile that tpusim finds fastest; null unless all cases are tiles of a layer"),
        "total_error": (NUMBER, "error of the sum over all cases"),
        "totals": (_of("Totals"), "sums over all cases, in the unit of the set"),
        "left_out": (_listed(_of("LeftOut")), "what belongs to the set and is not compared"),
        "halves": (_of("Halves"), "mean errors of the cases on which numbers of the machine were fitted, and others"),
        "quirks": (_of("Quirks"), "cases of which the estimator charges some of the taps alone"),
        "estimate_and_schedule": (_or_null(_of("Agreement")), "cases in which the compiler's estimate and schedule "
                                  "agree; null where no case has both"),
    }  # fmt: skip
    definitions = {
        "Set": _held("A set of numbers, and how close tpusim comes.",
                     {**figures, "rows": (_listed(_of("Case")), "every case")}),
        "Together": _held("All sets of one status and kind together.", figures),
        "Generation": _held("All sets of one status, generation and part together. Errors are ratios.", {
            "status": (TEXT, "how the reference's numbers are known"),
            "generation": (TEXT, "generation of TPU"),
            "part": (TEXT, "part of the machine's work, such as products"),
            "unit": (TEXT, "unit of the numbers"),
            "cases": (WHOLE, "cases that are compared"),
            "mean": (NUMBER, "mean of the absolute errors"),
            "median": (NUMBER, "median of the absolute errors"),
            "bias": (NUMBER, "mean of the signed errors"),
        }),
        "Spread": _held("Errors of several cases, as ratios: 0.1 is 10 % more cycles than the reference says.", {
            "mean": (NUMBER, "mean of the absolute errors"),
            "median": (NUMBER, "median of the absolute errors"),
            "p90": (NUMBER, "nine of ten absolute errors are at most this"),
            "worst": (NUMBER, "largest error, with its sign"),
            "where": (TEXT, "case of the largest error"),
        }),
        "Totals": _held("Sums over all cases.", {
            "ours": (NUMBER, "sum by tpusim"), "theirs": (NUMBER, "sum by the reference")}),
        "LeftOut": _held("Something that is not compared.", {
            "name": (TEXT, "its name in the reference"),
            "theirs": (_or_null(NUMBER), "number by the reference; null where it is not told"),
            "why": (TEXT, "why it is not compared; empty where the set says it")}),
        "Halves": _held("Mean errors of two halves; both null where nothing was fitted on the set.", {
            "fit": (_or_null(NUMBER), "cases on which numbers of the machine were fitted"),
            "rest": (_or_null(NUMBER), "all other cases")}),
        "Quirks": _held("Cases with the estimator's quirk.", {
            "cases": (WHOLE, "how many there are"),
            "mean_without": (_or_null(NUMBER), "mean error of all other cases; null where there are none, or no case "
                             "has the quirk")}),
        "Agreement": _held("Cases that have both an estimate and a schedule.", {
            "agree": (WHOLE, "cases in which they agree"), "known": (WHOLE, "cases that have both")}),
        "Compiled": _held("Collectives that were compiled for slices.", {
            "named": (WHOLE, "rows that name an emitter, or what the scheduler books"),
            "equal": (WHOLE, "rows of which all that is named is as ours"),
            "rows": (_listed(_of("CompiledRow")), "these rows"),
        }),
        "CompiledRow": _held("A collective that was compiled.", {
            "name": (TEXT, "generation, slice, axes, op and bytes"),
            "generation": (TEXT, "generation of TPU"),
            "theirs": (TEXT, "what the code or the scheduler names"),
            "ours": (TEXT, "the same by our rules"),
            "differs": (TEXTS, "what of it differs"),
        }),
        "Case": _held("A case. Numbers are in the unit of the set, errors are ratios.", {
            "name": (TEXT, "name of the case"),
            "ours": (NUMBER, "number by tpusim"),
            "theirs": (NUMBER, "number by the reference"),
            "roofline": (NUMBER, "number by the roofline"),
            "fitted": (YES, "whether numbers of the machine were fitted on the case; missing where none were on any"),
            "with_their_block": (_or_null(NUMBER), "number by tpusim with the compiler's block; null where the block "
                                 "is not known, or does not fit"),
            "estimated": (_or_null(NUMBER), "number by the compiler's estimate, where it is known too"),
            "scheduled": (_or_null(NUMBER), "number by the compiler's schedule, where it is known too"),
            "quirk": (YES, "whether the estimator charges some of the taps alone"),
            "error": (NUMBER, "error of tpusim"),
            "error_with_their_block": (_or_null(NUMBER), "error of tpusim with the compiler's block"),
            "roofline_error": (NUMBER, "error of the roofline; of pods that of one number for a generation"),
            "parts": (_by_name(NUMBER), "of pods, by what the chip does, its share of the cycles of a step"),
            "chips": (WHOLE, "of pods, all chips"),
        }, "fitted parts chips"),
    }  # fmt: skip
    keys: Keys = {
        "sets": (_listed(_of("Set")), "every set that was asked for"),
        "together": (_listed(_of("Together")), "kinds of which there are several sets, each as one"),
        "generations": (_listed(_of("Generation")), "sets of TPUs after v2, by generation and part"),
        "compiled": (_of("Compiled"), "of sets of collectives: what the compiler's code names, beside ours"),
    }
    return {**_held("Sets of numbers, and how close tpusim comes to them.", keys, "compiled"), "$defs": definitions}


def _dram() -> Schema:
    figures: Keys = {
        "first_ns": (_or_null(NUMBER), "when the first data is there; null where nothing was asked"),
        "last_ns": (_or_null(NUMBER), "when the last data is there; null where nothing was asked"),
        "bytes_requested": (WHOLE, "bytes of the trace"),
        "bytes_moved": (WHOLE, "bytes of all bursts that were read or written"),
        "bandwidth_bytes_per_s": (NUMBER, "bytes moved in a second, from 0 until the last data of all is there"),
        "row_hits": (WHOLE, "bursts that were not the first of a row"),
        "activates": (WHOLE, "rows opened"),
        "refreshes": (WHOLE, "refreshes that came due"),
    }
    keys: Keys = {
        "device": (TEXT, "name of the DRAM"),
        "changes": CHANGES,
        "engine": (TEXT, "model that played the trace: one_pass, clocked or both"),
        "peak_bytes_per_s": (NUMBER, "bandwidth of all channels at most"),
        **figures,
        "channels": (_listed(_of("Channel")), "the same figures of each channel"),
    }
    channel = _held("Figures of a channel.", figures)
    return {**_held("What a DRAM makes of a trace of requests.", keys), "$defs": {"Channel": channel}}


def _collective() -> Schema:
    of_one: Keys = {
        "op": (TEXT, "the op"),
        "bytes": (WHOLE, "bytes of a chip's operand; of an all-gather, of its result"),
        "slice": (ANY, "the slice, as its [file](machine.md#slice-files) would have it"),
        "axes": (TEXTS, "axes whose chips take part together"),
        "mesh": (_by_name(_listed(_listed(WHOLE))), "by axis of the mesh the spans of the torus: axis, stride, chips"),
        "chips": (WHOLE, "chips that take part together"),
        "algorithm": (TEXT, "name of the algorithm"),
        "compiler": (_of("Compiler"), "what Google's compiler takes"),
        "cycles": (WHOLE, "cycles until the last chip is done"),
        "time_s": (NUMBER, "the same in seconds"),
        "bandwidth_bytes_per_s": (NUMBER, "bandwidth as a benchmark counts it: all but a chip's own part, of an "
                                          "all-reduce twice, over the time"),
        "closed_form_s": (NUMBER, "seconds by bytes over links alone, without hops and launch"),
        "account": (_by_name(WHOLE), "cycles of the chip that is done last, by what it does"),
        "links": (_by_name(_of("AxisLinks")), "by axis and direction, the part of the time for which links are held"),
    }  # fmt: skip
    change = _held("The collective with a change.", {
        "what": (TEXT, "the change"),
        "cycles": (WHOLE, "cycles with it"),
        "time_s": (NUMBER, "seconds with it"),
    })  # fmt: skip
    definitions = {
        "Compiler": _held("What Google's compiler takes for a collective; empty names where its code has none.", {
            "algorithm": (TEXT, "name of the algorithm"),
            "emitter": (TEXT, "name of the emitter in its code"),
            "strategy": (TEXT, "name of the strategy"),
            "colours": (WHOLE, "colours"),
            "phases": (WHOLE, "phases"),
            "books": (TEXTS, "links and SparseCores that its scheduler keeps for it"),
        }),
        "AxisLinks": _held("Links along an axis, in one direction.", {
            "least": (NUMBER, "part of the time of the link that is held least"),
            "mean": (NUMBER, "mean of all"),
            "most": (NUMBER, "part of the time of the link that is held most"),
        }),
        "Checked": _held("Values that were computed and compared.", {
            "elements": (WHOLE, "elements of all chips"),
            "wrong": (WHOLE, "elements that are not what the definition says"),
            "engines": (TEXTS, "engines that came to the same cycle"),
        }),
        "Easier": change,
        "OneSize": _held("A collective of one size.", of_one),
    }  # fmt: skip
    keys: Keys = {
        **of_one,
        "checked": (_or_null(_of("Checked")), "values; null where they are too many"),
        "easier": (_listed(_of("Easier")), "with --explain: the collective with one thing made easier"),
        "other_axes": (_listed(_of("Easier")), "with --explain: over other axes"),
        "other_algorithms": (_listed(_of("Easier")), "with --explain: by other algorithms"),
        "sizes": (_listed(_of("OneSize")), "with --sizes: a collective of each size, in place of all other keys"),
    }
    return {**_held("A collective on a slice.", keys, " ".join(keys)), "$defs": definitions}


def _scale() -> Schema:
    of_a_slice: Keys = {
        "slice": (TEXT, "name of the slice"),
        "chips": (WHOLE, "chips of the slice"),
        "batch": (WHOLE, "images or sequences of all chips together"),
        "about": (_or_null(TEXT), "the slice in words"),
        "mesh": (_or_null(_by_name(WHOLE)), "axes along which chips share the network, each with its chips"),
        "cycles": (_or_null(WHOLE), "cycles of a step, of a chip's clock"),
        "seconds": (_or_null(NUMBER), "seconds of a step"),
        "items_per_second": (_or_null(NUMBER), "what all chips make in a second"),
        "items_per_second_chip": (_or_null(NUMBER), "what a chip makes in a second"),
        "parts": (_or_null(_by_name(WHOLE)), "cycles by what a chip does in them; they add up to those of the step"),
        "of_ideal": (_or_null(NUMBER), "what a chip makes, of what one makes on the slice of fewest chips"),
        "refusal": (
            _or_null(TEXT),
            "why the slice cannot run the network, its figures then being null; or null",
        ),
    }
    definitions = {"ScaledSlice": _held("The network on the chips of a slice.", of_a_slice)}
    keys: Keys = {
        "workload": (TEXT, "name of the network"),
        "machine": (TEXT, "name of each chip, with what was set"),
        "hardware": MACHINE,
        "sizes": (_by_name(WHOLE), "sizes that the workload names"),
        "dtype": (TEXT, "type of numbers"),
        "items": (TEXT, "what is made in a step: images, or tokens"),
        "batch_a_chip": (_or_null(WHOLE), "images or sequences a chip, where they are as many on every slice; or null"),
        "slices": (_listed(_of("ScaledSlice")), "every slice, those of fewest chips first"),
    }
    return {**_held("A network on slices of more and more chips.", keys), "$defs": definitions}


def _area() -> Schema:
    definitions = {
        "Part": _held("A part of the machine.", {
            "key": (TEXT, "name of the part for programs"),
            "name": (TEXT, "name of the part for people"),
            "mm2": (NUMBER, "area in square millimetres"),
            "basis": (TEXT, "how the area is known: model or published"),
            "what": (TEXT, "what the area is worked out from"),
        }),
        "Word": _held("The vector memory of a lane with words of one width.", {
            "elements": (WHOLE, "elements of a word"),
            "bits": (WHOLE, "bits of a word"),
            "pitch_mm2": (NUMBER, "area by the pitch of its cells"),
            "macro_mm2": (NUMBER, "area by compiled macros"),
        }),
        "Chip": _held("A whole chip, as published.", {
            "name": (TEXT, "name of the chip"),
            "cores": (WHOLE, "cores of the chip, of each of which the machine is the matrix units and memories"),
            "area": (TEXT, "the most that the chip's area may be"),
            "power": (TEXT, "power of the chip"),
            "feature": (TEXT, "feature size of its process"),
        }),
    }  # fmt: skip
    keys: Keys = {
        "hardware": MACHINE,
        "changes": CHANGES,
        "technology": (ANY, "the technology, as its [file](machine.md#technology-files) would have it"),
        "parts": (_listed(_of("Part")), "parts of the machine"),
        "total_mm2": (NUMBER, "area of all parts"),
        "total_with_macros_mm2": (NUMBER, "the same with vector memories of compiled macros"),
        "words": (_listed(_of("Word")), "the vector memory of a lane, by the width of its words"),
        "chip": (_or_null(_of("Chip")), "the chip that the machine models; null where none is known"),
    }
    return {**_held("What each part of a machine takes of a chip.", keys), "$defs": definitions}


def _list() -> Schema:
    definitions = {
        "Network": _held("A workload that comes with tpusim.", {
            "name": (TEXT, "name of the workload"),
            "layers": (WHOLE, "layers of the workload"),
            "macs_per_image": (WHOLE, "multiply-accumulates at batch 1"),
            "source": (TEXT, "where its sizes come from"),
            "chips": (WHOLE, "chips that share the network, of which it is the part of one"),
        }),
        "ListedMachine": _held("A machine that comes with tpusim.", {
            "name": (TEXT, "name of the machine"),
            "family": (TEXT, "kind of machine: tpu or gpu"),
            "generation": (_or_null(TEXT), "generation of the chip that it stands for; null where it stands for none"),
            "year": (_or_null(WHOLE), "year when that generation was announced"),
            "chip_cores": (WHOLE, "cores of that chip, of which it is one; 1 where it is the whole chip, or none"),
            "peak_tflops": (NUMBER, "10^12 operations a second at most, two for each MAC"),
            "pes": (WHOLE, "processing elements, or what does a MAC in a cycle in their place"),
            "sram_bytes": (WHOLE, "bytes of all memories on the chip"),
            "hbm_bytes_per_s": (WHOLE, "bytes a second of the memory outside"),
            "hbm_capacity_bytes": (_or_null(WHOLE), "bytes of that memory; null where the file does not tell"),
            "hardware": MACHINE,
        }),
        "ListedSweep": _held("A sweep that comes with tpusim.", {
            "name": (TEXT, "name of the sweep"),
            "workloads": (TEXTS, "workloads of the sweep"),
            "axes": (ANY, "axes of the sweep, as its [file](../sweeps.md) has them"),
        }),
    }  # fmt: skip
    keys: Keys = {
        "workloads": (_listed(_of("Network")), "workloads, by name"),
        "machines": (_listed(_of("ListedMachine")), "machines: those of no chip first, then by year and generation"),
        "drams": (_listed(ANY), "DRAMs, as their [files](machine.md#dram-files) have them"),
        "slices": (_listed(ANY), "slices, as their [files](machine.md#slice-files) have them"),
        "lowerings": (_by_name(_by_name(TEXT)), "by kind of machine, lowerings with what each does"),
        "sweeps": (_listed(_of("ListedSweep")), "sweeps, by name"),
    }
    return {**_held("What comes with tpusim.", keys), "$defs": definitions}


def _paper() -> Schema:
    definitions = {
        "Exhibit": _held("A figure or table of the paper.", {
            "figure": (TEXT, "name of the exhibit on the command line"),
            "name": (TEXT, "name of the exhibit in the paper"),
            "title": (TEXT, "title of the exhibit"),
            "section": (TEXT, "section of the paper"),
            "states": (TEXT, "what the paper states there"),
            "how": (TEXT, "how our figures are made"),
            "claims": (_listed(_of("Claim")), "claims of the paper that the exhibit carries"),
            "tables": (_listed(_of("TextTable")), "tables that are shown with it"),
        }),
        "Claim": _held("A claim of the paper, and a verdict.", {
            "key": (TEXT, "name of the claim for programs"),
            "short": (TEXT, "the claim in short"),
            "sentence": (TEXT, "the claim in a sentence"),
            "section": (TEXT, "section of the paper"),
            "stated": (TEXT, "number that the paper states"),
            "note": (TEXT, "how our figures are worked out, and why we disagree where we do"),
            "rule": (_or_null(TEXT), "what a figure of ours has to meet; null where there is no rule"),
            "findings": (_listed(_of("Finding")), "our figures"),
            "unit": (_or_null(TEXT), "unit of rule and figures; null where there is no rule"),
            "verdict": (TEXT, "verdict that follows from rule and findings"),
        }),
        "Finding": _held("A figure of ours.", {
            "when": (TEXT, "condition of the figure"),
            "value": (NUMBER, "the figure, in the unit of the rule"),
            "word": (TEXT, "how we know it: simulated, counted, modelled or estimated"),
            "agrees": (YES, "whether the figure meets the rule"),
        }),
        "TextTable": _held("A table of text.", {
            "head": (TEXTS, "heads of the columns"),
            "rows": (_listed(TEXTS), "cells, row by row"),
            "title": (TEXT, "title of the table; may be empty"),
        }),
    }  # fmt: skip
    keys: Keys = {"exhibits": (_listed(_of("Exhibit")), "every figure and table that was asked for")}
    return {**_held("Figures and tables of the paper, and its claims.", keys), "$defs": definitions}


def schemas() -> dict[str, Schema]:
    """By command the JSON schema of what its `--json` writes; that of `tpusim run` is `docs.columns.run_schema`."""
    made = {
        "explain": _explain(), "compare": _compare(), "validate": _validate(), "dram": _dram(), "area": _area(),
        "collective": _collective(), "scale": _scale(), "paper": _paper(), "list": _list(),
    }  # fmt: skip
    version = {"type": "string", "description": "version of tpusim that wrote it"}
    return {
        name: {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"JSON of tpusim {name}, version {tpusim.__version__}",
            **schema,
            "properties": {"tpusim": version, **schema["properties"]},
            "required": ["tpusim", *schema["required"]],
        }
        for name, schema in made.items()
    }
