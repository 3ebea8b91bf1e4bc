"""What was taken in joules, in a sentence."""

from __future__ import annotations

from tpusim.report.text import percent, quantity, three_digits
from tpusim.result.records import LayerResult, Total
from tpusim.result.vocabulary.energies import parts_in
from tpusim.result.vocabulary.figures import JOULES


def energy_sentence(record: LayerResult | Total) -> str:
    """How much, what it went to, and that it is a model; empty where nothing is known of it."""
    use = record.energy_use
    if use is None:
        return ""
    shares = ", ".join(
        f"{part.label} {percent(use.parts.get(part.key, 0.0) / use.energy)} %" for part in parts_in([use])
    )
    watts = use.energy / record.time_us / 1e6
    return (
        f"Energy, a model in {use.technology}: {quantity(use.energy, JOULES)}, {three_digits(watts)} W on the mean, "
        f"{three_digits(use.tops_per_watt)} TOPS/W; {shares}"
    )
