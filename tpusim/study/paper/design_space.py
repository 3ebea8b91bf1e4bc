"""Fig. 16: how large the array, and how wide the word of the vector memories."""

from __future__ import annotations

from itertools import pairwise

from tpusim.machines.tpu.cost import Sram, srams_by_word
from tpusim.machines.tpu.description import load_hardware
from tpusim.network.workload_file import load_workload
from tpusim.study.paper.claim import MODELLED, Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import point_of
from tpusim.study.paper.views import Curves, Mark, Series
from tpusim.study.validation.tables import rows

_SIDES = 32, 64, 128, 256, 512
_WORDS = 1, 2, 4, 8, 16, 32
_BATCH = 8
_STATED = 5.0
"""The paper's area of words of one element, over the least."""


def sizes_asked() -> Asked:
    """VGG16 on arrays of each size."""
    return _vgg16({str(side): f"array.size={side}" for side in _SIDES})


def words_asked() -> Asked:
    """VGG16 with words of each width."""
    return _vgg16({str(word): f"vector_memory.word_elements={word}" for word in _WORDS})


def _vgg16(changes: dict[str, str]) -> Asked:
    layers, machine = load_workload("vgg16", batch=_BATCH).layers, load_hardware("tpu_v2")
    return {key: point_of("vgg16", layers, machine.with_overrides([each]), _BATCH) for key, each in changes.items()}


def make_sizes(found: Found) -> Shown:
    """TFLOPS and utilisation over the size of the array."""
    tflops = [float(found[str(side)].figures["tflops"]) for side in _SIDES]
    used = [100 * float(found[str(side)].figures["pe_utilization"]) for side in _SIDES]
    at = dict(zip(_SIDES, used, strict=True))
    faster = min(after / before for before, after in pairwise(tflops))
    emptier = min(before / after for before, after in pairwise(used))
    curves = Curves(
        "VGG16 over the size of the array", _SIDES, "array size (PEs a side)", [Series("TFLOPS", tflops)], "TFLOPS",
        [Series("PE utilisation", used)], "PE utilisation (%)", doubling=True,
    )  # fmt: skip
    return Shown(
        [curves],
        {
            "size_performance": [Finding("TFLOPS", faster), Finding("utilisation", emptier)],
            "size_utilisation": [Finding("VGG16", at[256] / at[128])],
        },
    )


def make_words(found: Found) -> Shown:
    """Idle ports and area over the width of a word."""
    srams = {each.elements: each for each in srams_by_word(load_hardware("tpu_v2"))}
    pitch, macro = _normalised(srams, "pitch_mm2"), _normalised(srams, "macro_mm2")
    idle = [100 * float(found[str(word)].figures["port_idle_ratio"]) for word in _WORDS]
    areas = {"area by pitch": pitch, "area by CACTI": macro}
    curves = Curves(
        "VGG16 over the width of a word", _WORDS, "word (elements of 4 bytes)",
        [Series(name, [area[word] for word in _WORDS]) for name, area in areas.items()], "area over the least",
        [Series("ports unused", idle)], "ports unused (%)", [Mark(f"the paper's words of 1: {_STATED:g}", _STATED)],
        doubling=True,
    )  # fmt: skip
    used = [Finding("VGG16", 100 - dict(zip(_WORDS, idle, strict=True))[8])]
    return Shown([curves], {**_areas(pitch, macro), "word_order": _order(pitch), "word_bandwidth": used})


def _normalised(srams: dict[int, Sram], kind: str) -> dict[int, float]:
    areas = {word: float(getattr(each, kind)) for word, each in srams.items()}
    least = min(areas.values())
    return {word: area / least for word, area in areas.items()}


def _areas(pitch: dict[int, float], macro: dict[int, float]) -> dict[str, list[Finding]]:
    def both(one: int, other: int | None = None) -> list[Finding]:
        ways = (("by the pitch of cells", pitch), ("by CACTI's macros", macro))
        return [Finding(how, area[one] / (area[other] if other else 1), MODELLED) for how, area in ways]

    return {"word_one": both(1), "word_narrow": both(1, 8), "word_eight": both(8)}


def _order(pitch: dict[int, float]) -> list[Finding]:
    """The whole curve, against a table of it."""
    column = "openram_pitch_model_oh96um_norm"
    table = {int(row["word_elems_4B"]): float(row[column]) for row in rows("sram_area_vs_word")}
    return [Finding(f"words of {word}", pitch[word] / table[word], MODELLED) for word in _WORDS]
