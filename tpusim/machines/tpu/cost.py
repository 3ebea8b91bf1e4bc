"""Area of a machine, part by part, and energy of a run, from its counts.

Widths are those published for TPU v2: bfloat16 times bfloat16 into FP32.
"""

from __future__ import annotations

from collections.abc import Iterator

from tpusim.machines.family import AreaShare, ChipArea, Sram
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.program.transfers import LaneTransfer
from tpusim.result.records import EnergyUse, energy_use

NARROW_BITS = 16
"""Bits of a weight, and of an element on its way through the array."""
WIDE_BITS = 32
"""Bits of a sum, and of an ALU of the vector unit."""
PASSED_BITS = NARROW_BITS + WIDE_BITS
"""Bits that one multiplication hands on to its neighbours: an element to the right, a sum downwards."""


def word_bits(hardware: Hardware) -> int:
    """Bits of a word of the vector memories."""
    return 8 * hardware.word_bytes


def pe_register_bits(hardware: Hardware) -> int:
    """Bits of a PE's registers: its weights, the weights on their way down its column, and what it hands on, an element
    and a sum.

    Where a wavefront crosses several PEs in a cycle, only the last of these needs registers for what it hands on; here
    all of them have such registers.
    """
    weights = hardware.array.weight_buffers + hardware.array.weights_per_cycle
    return NARROW_BITS * weights + PASSED_BITS * hardware.multipliers


def serializer_words(hardware: Hardware) -> int:
    """Words of serializers and de-serializers: one of each, in each lane, for each array."""
    return 2 * hardware.lanes * hardware.array.count


def scalar_words(hardware: Hardware) -> int:
    """Words of scalars in all lanes of the vector unit."""
    return hardware.lanes * hardware.vector_unit.scalar_words


def parts_of(hardware: Hardware) -> Iterator[AreaShare]:
    """Every modelled part of a machine; vector memories by the pitch of their cells."""
    silicon, bits, pes, alus = hardware.silicon, word_bits(hardware), hardware.pes, hardware.vector_unit.alus
    for key, name, count, words in _srams(hardware):
        what = f"{count:,} x {words:,} words of {bits} bits, by the pitch of cells"
        yield AreaShare(key, name, count * silicon.pitch.area(words, bits), "model", what)
    if hardware.banks:
        ports, rows = hardware.banks * hardware.vector_memory.bank_ports, hardware.array.rows
        what = f"{ports:,} x {rows:,} ports of {bits} bits, scaled from one that was laid out"
        area = silicon.crossbar.area(ports, rows, bits, silicon.feature_nm)
        yield AreaShare("crossbar", "crossbar", area, "published", what)
    macs = hardware.macs_per_cycle
    what = f"{macs:,} multipliers of {NARROW_BITS} bits, adders of {WIDE_BITS}"
    yield AreaShare("array", "array", silicon.arithmetic.area(macs, narrow=True), "published", what)

    def flip_flops(key: str, name: str, count: int, of: str, each: int) -> AreaShare:
        return AreaShare(key, name, silicon.flip_flop.area(count * each), "model", f"{count:,} {of} of flip-flops")

    each = pe_register_bits(hardware)
    yield flip_flops("pe_registers", "registers of the PEs", pes, f"x {each} bits", each)
    of = f"words of {bits} bits"
    yield flip_flops("serializers", "serializers, de-serializers", serializer_words(hardware), of, bits)
    what = f"{alus:,} multipliers and adders of {WIDE_BITS} bits"
    yield AreaShare("vector_unit", "vector unit", silicon.arithmetic.area(alus, narrow=False), "published", what)
    yield flip_flops("vector_registers", "its registers", scalar_words(hardware), of, bits)


_WORDS = (1, 2, 4, 8, 16, 32)
"""Elements of a word in the paper's Fig. 16b."""


def area_of(hardware: Hardware) -> ChipArea:
    """Area of the machine on a chip.

    The vector memory of a lane is also given with words of other widths at the same capacity, and vector memories and
    banks also as compiled macros.
    """
    silicon, memory, bits = hardware.silicon, hardware.vector_memory, word_bits(hardware)
    words_of = {elements: memory.capacity_bytes // (elements * memory.element_bytes) for elements in _WORDS}
    widths = [(elements, 8 * elements * memory.element_bytes, words) for elements, words in words_of.items() if words]
    return ChipArea(
        silicon,
        tuple(parts_of(hardware)),
        sum(count * silicon.macro.area(words, bits) for _, _, count, words in _srams(hardware)),
        memory.capacity_bytes,
        tuple(
            Sram(n, wide, silicon.pitch.area(words, wide), silicon.macro.area(words, wide)) for n, wide, words in widths
        ),
    )


def _srams(hardware: Hardware) -> Iterator[tuple[str, str, int, int]]:
    """(key, name, number, words) of each kind of SRAM."""
    yield "vector_memories", "vector memories", hardware.lanes, hardware.capacity_words
    if hardware.banks:
        yield "banks", "banks of the ifmap", hardware.banks, hardware.bank_words // hardware.banks


def energy_of(macs: int, program: Program, timing: Timing, hardware: Hardware, pes: int) -> EnergyUse:
    """The energy that a layer of `macs` multiplications took, by the keys of `tpusim.result.vocabulary.states`.

    PEs in use multiply padding, too; all `pes` that there are leak. Weights move down their column from PE to PE.
    Accesses are counted in words over all lanes.
    """
    silicon, bits, memory = hardware.silicon, word_bits(hardware), hardware.vector_memory
    use, device, seconds = timing.hbm, hardware.hbm.dram, timing.cycles / hardware.clock_hz
    hbm_bytes, row_bytes = program.use.hbm_read_bytes + program.use.hbm_write_bytes, 0
    if use and device:
        hbm_bytes = sum((*use.reads, *use.writes)) * device.organisation.burst_bytes
        row_bytes = device.organisation.columns * device.organisation.burst_bytes
    # Elements that pass PEs and are added to partial sums, and operations of vector steps on each element of a result.
    passing = products = sums = 0
    for stream, count in program.rows.done(Stream):
        elements = count * stream.words * stream.cols * (stream.fill or program.word_fill)
        passing += elements * stream.rows
        products += elements * stream.finishing[0] * bool(stream.finish)
        sums += elements * (stream.accumulate + stream.finishing[1])
    worked = [(*each.worked(hardware), count) for each, count in program.rows.done(LaneTransfer) if each.work]
    for step, count in program.rows.done(Vector):
        worked.append((*step.operations(hardware)[:2], count * step.writes.accesses))
    products += program.word_fill * sum(multiplied * count for multiplied, _, count in worked)
    sums += program.word_fill * sum(others * count for _, others, count in worked)
    preloads = [*program.rows.done(Preload)]
    counts = {
        "pe_operations": passing,
        "weights_loaded": sum(step.rows * step.cols * count for step, count in preloads) * hardware.array.together,
        "vector_products": products,
        "vector_sums": sums,
    }
    # A weight for row r moves r + 1 times: the first row's once, the last row's through all rows.
    moves = hardware.array.together * sum(
        count * step.cols * step.rows * (step.rows + 1) // 2 for step, count in preloads
    )
    passed = counts["pe_operations"] * PASSED_BITS + moves * NARROW_BITS
    # A word is written once into the register beside its port, and each of its elements once more between that and the
    # array.
    moved = 2 * (timing.reads + timing.writes) * bits
    # Leakage in picojoules a second.
    lanes = hardware.lanes * silicon.macro.leakage(memory.capacity_bytes, bits)
    banks = hardware.banks * silicon.macro.leakage(memory.bank_capacity_bytes, bits)
    words = serializer_words(hardware) + scalar_words(hardware)
    flip_flops = pes * pe_register_bits(hardware) + words * bits
    leakage = lanes + banks + silicon.flip_flop.leakage(flip_flops)
    parts = {
        "multiply_adds": silicon.arithmetic.multiply_adds(counts["pe_operations"]),
        "pe_registers": silicon.flip_flop.writes(passed),
        "vector_operations": silicon.arithmetic.fp32(counts["vector_products"], counts["vector_sums"]),
        "port_reads": timing.reads * silicon.macro.access("read", memory.capacity_bytes, bits),
        "port_writes": timing.writes * silicon.macro.access("write", memory.capacity_bytes, bits),
        "serializers": silicon.flip_flop.writes(moved),
        "hbm_bits": silicon.hbm.bits(8 * hbm_bytes, use is not None),
        "hbm_activates": silicon.hbm.activates(sum(use.activates) if use else 0, row_bytes),
        "leakage": leakage * seconds,
    }
    return energy_use(silicon.name, parts, counts, macs, seconds)
