"""The settings of the machine, its mapping, the batch and the lowering: names of the fields, and their units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """A setting; `unit` counts a bare number; quantities such as "700 MHz" and words carry their own or none."""

    path: str
    label: str
    unit: str = ""

    @property
    def title(self) -> str:
        """The label with the unit, unless the label has it: "array rows (PEs)"."""
        return self.label if self.unit in self.label else f"{self.label} ({self.unit})"

    def shown(self, value: object) -> str:
        """Return a value with its unit: "1 array", "4 arrays"."""
        first, *rest = self.unit.split(" ")
        return " ".join([str(value), first.removesuffix("s") if value == 1 else first, *rest]).strip()


FIELDS: Mapping[str, Field] = {field.path: field for field in (
    Field("generation", "generation of the chip"),
    Field("chip_cores", "cores of the chip, of which the machine is one", "cores"),
    Field("clock", "clock"),
    Field("array.size", "array size", "PEs a side"),
    Field("array.rows", "array rows", "PEs"),
    Field("array.cols", "array columns", "PEs"),
    Field("array.weight_buffers", "weight registers of a PE", "registers a PE"),
    Field("array.streamed", "elements streamed of a word"),
    Field("array.weights_per_cycle", "weights that enter a column in a cycle", "weights"),
    Field("array.weights_rate", "whose rate of weights that is"),
    Field("array.elements_per_cycle", "elements that enter a row in a cycle", "elements"),
    Field("array.pes_per_cycle", "PEs that a wavefront crosses in a cycle", "PEs"),
    Field("array.count", "arrays", "arrays"),
    Field("array.weights", "weights of several arrays"),
    Field("array.split", "parts of a split array", "parts"),
    Field("vector_memory.word_elements", "vector memory word", "elements"),
    Field("vector_memory.element_bytes", "element", "bytes"),
    Field("vector_memory.result_bytes", "result in HBM", "bytes"),
    Field("vector_memory.capacity", "vector memory of a lane"),
    Field("vector_memory.ports", "ports of a vector memory"),
    Field("vector_memory.organization", "organization of the vector memories"),
    Field("vector_memory.banks", "banks of the ifmap", "banks"),
    Field("vector_memory.bank_ports", "ports of a bank to read", "ports"),
    Field("vector_memory.bank_capacity", "memory of a bank"),
    Field("vector_memory.bank_map", "map of the ifmap to banks"),
    Field("vector_unit.alus", "vector ALUs", "ALUs"),
    Field("vector_unit.unpack_cycles", "unpacking a word", "cycles"),
    Field("vector_unit.pack_cycles", "packing a word", "cycles"),
    Field("vector_unit.stack_cycles", "rotating a word for one more copy", "cycles"),
    Field("vector_unit.stack_free", "copies of a word without a rotation", "copies"),
    Field("vector_unit.stack_by", "copies that are rotated"),
    Field("vector_unit.transpose_cycles", "transposing the words of a pixel", "cycles"),
    Field("vector_unit.transpose_words", "words of a pixel transposed together", "words"),
    Field("vector_unit.gather_cycles", "putting the channels of a tap beside others", "cycles"),
    Field("vector_unit.convert_cycles", "converting a word of a new patch", "cycles"),
    Field("vector_unit.convert_bytes", "converted operand in a window", "bytes"),
    Field("vector_unit.convert_weight_cycles", "converting a word of weights", "cycles"),
    Field("vector_unit.convert_result_cycles", "converting a word of results", "cycles"),
    Field("vector_unit.relayout_cycles", "laying out a word anew", "cycles"),
    Field("vector_unit.scalar_words", "words of scalars that a lane keeps", "words"),
    Field("vector_unit.operand_cycles", "fetching an operand into place", "cycles"),
    Field("vector_unit.result_cycles", "finishing a result", "cycles"),
    Field("vector_unit.ready_cycles", "making a word ready for the vector unit", "cycles"),
    Field("vector_unit.widen", "ALU operations to widen an element of an operand", "operations"),
    Field("vector_unit.narrow", "ALU operations to narrow an element of a result", "operations"),
    Field("vector_unit.rounding", "ALU operations to round an element of a result", "operations"),
    Field("vector_unit.arithmetic", "elements that ALUs work on"),
    Field("vector_unit.slots.loads", "registers loaded in a cycle", "registers"),
    Field("vector_unit.slots.stores", "registers stored in a cycle", "registers"),
    Field("vector_unit.slots.lanes", "lanes of a register", "lanes"),
    Field("vector_unit.slots.register", "register of a lane"),
    Field("vector_unit.slots.registers", "registers of results in a turn of the loop", "registers"),
    Field("vector_unit.slots.latency", "from an operation to one that needs its result", "cycles"),
    Field("vector_unit.slots.packed", "whether narrow words lie side by side in a register"),
    Field("vector_unit.slots.lookup_cycles", "a register in the unit beside the ALUs", "cycles"),
    Field("vector_unit.slots.turn_cycles", "transposing a register", "cycles"),
    Field("vector_unit.slots.body_cycles", "a loop body beyond its busiest slot", "cycles"),
    Field("vector_unit.slots.window", "registers of a loop body", "registers"),
    Field("vector_unit.slots.sum_cycles", "a loop body of sums, beyond that", "cycles"),
    Field("vector_unit.slots.bare_cycles", "a loop body of one instruction, beyond its busiest slot", "cycles"),
    Field("vector_unit.slots.map_cycles", "such a body, for each map beyond the first", "cycles"),
    Field("vector_unit.slots.spread_cycles", "numbers of rows, to all lanes of a register", "cycles"),
    Field("vector_unit.slots.bare_window", "registers of a loop body of one instruction", "registers"),
    Field("vector_unit.slots.turn_body_cycles", "a loop body that turns words, beyond its busiest slot", "cycles"),
    Field("vector_unit.slots.turn_window", "registers of a loop body that turns words", "registers"),
    Field("vector_unit.functions.exp", "ALU operations of exp, multiplications and others"),
    Field("vector_unit.functions.tanh", "ALU operations of tanh, multiplications and others"),
    Field("vector_unit.functions.erf", "ALU operations of erf, multiplications and others"),
    Field("vector_unit.functions.divide", "ALU operations of a division, multiplications and others"),
    Field("vector_unit.functions.reciprocal_root", "ALU operations of 1 / root, multiplications and others"),
    Field("vector_unit.functions.sigmoid", "ALU operations of a sigmoid, multiplications and others"),
    Field("vector_unit.functions.gelu_tanh", "ALU operations of GELU by tanh, multiplications and others"),
    Field("vector_unit.functions.wide_divide", "ALU operations of a division of wide numbers"),
    Field("vector_unit.functions.wide_sigmoid", "ALU operations of a sigmoid of wide numbers"),
    Field("hbm.model", "model of HBM"),
    Field("hbm.bandwidth", "HBM bandwidth"),
    Field("hbm.latency", "HBM latency"),
    Field("hbm.burst", "HBM burst"),
    Field("hbm.channel_multiple", "channels stored in multiples of", "channels"),
    Field("hbm.tile_rows", "rows of a tile in HBM", "rows"),
    Field("hbm.smallest_tile", "smallest tile in HBM"),
    Field("hbm.layout", "order of tensors' axes in HBM"),
    Field("hbm.alignment", "alignment of tensors in HBM"),
    Field("hbm.capacity", "capacity of HBM"),
    Field("hbm.device", "DRAM of HBM"),
    Field("hbm.mapping", "mapping of addresses to channels, banks and rows"),
    Field("scratch_memory.capacity", "scratch memory"),
    Field("scratch_memory.bandwidth", "scratch memory bandwidth"),
    Field("scratch_memory.latency", "scratch memory latency"),
    Field("sequencer.launch_cycles", "launch of a layer", "cycles"),
    Field("sequencer.between_blocks", "between blocks"),
    Field("sequencer.block_cycles", "loop body of a block beyond its steps", "cycles"),
    Field("sequencer.loop_cycles", "loop body of several beyond that", "cycles"),
    Field("sequencer.between_layers", "between layers"),
    Field("sequencer.fusion", "what additions and activations ride on"),
    *(
        Field(f"types.{name}{key}", f"{what} of {name}", unit)
        for name in ("f32", "bf16", "f16", "f8", "int8")
        for key, what, unit in (
            (".bytes", "operand", "bytes"), (".rate", "elements and weights a cycle", "times"),
            (".weights_per_cycle", "converted weights a cycle", "weights"), (".result_bytes", "result in HBM", "bytes"),
            (".window", "windows of a step", ""),
            (".convert_cycles", "converting a word", "cycles"), (".convert_bytes", "converted operand", "bytes"),
            (".convert_weight_cycles", "converting a word of weights", "cycles"),
            (".convert_result_cycles", "converting a word of results", "cycles"),
            (".widen", "widening an operand", "operations"),
            (".narrow", "narrowing a result", "operations"), (".rounding", "rounding a result", "operations"),
        )
    ),
    Field("mapping.multi_tile", "taps stacked in a pass (multi-tile)"),
    Field("mapping.loop_order", "loop order"),
    Field("mapping.chunks", "chunks of a reduction"),
    Field("mapping.transformation", "transformation and product"),
    Field("mapping.fetch", "fetch of the ifmap"),
    Field("mapping.loads", "loads that a block begins with"),
    Field("mapping.window", "most that the windows of a step hold"),
    Field("mapping.window_cycles", "charge for a step of the pipeline", "cycles"),
    Field("mapping.window_results", "charge for bytes of results", "times"),
    Field("mapping.window_bandwidth", "bandwidth that is expected", "of HBM's"),
    Field("mapping.k_order", "order of K"),
    Field("mapping.layout", "layout of tensors"),
    Field("mapping.patch", "points fetched of the ifmap"),
    Field("mapping.transposed_channels", "channels up to which words are transposed", "channels"),
    Field("mapping.strips", "strips that fill words of a small batch"),
    Field("mapping.row_windows", "kernels held row by row, from", "taps a side"),
    Field("mapping.column_folds", "column folds of a block"),
    Field("mapping.rows", "rows from stage to stage of softmax and the like"),
    Field("mapping.entry", "ifmap as it arrives"),
    Field("mapping.search", "choice of blocks"),
    Field("mapping.block_m", "words streamed in a pass", "words"),
    Field("mapping.block_k", "rows of a pass", "rows"),
    Field("mapping.block_n", "columns of a pass", "columns"),
    Field("mapping.block.rows", "rows of a block", "rows"),
    Field("mapping.block.cols", "columns of a block", "columns"),
    Field("mapping.block.images", "images of a block", "images"),
    Field("mapping.block.in_channels", "input channels on chip", "channels"),
    Field("mapping.block.out_channels", "output channels of a block", "channels"),
    Field("mapping.block.taps", "taps on chip", "taps"),
    Field("mapping.block.tap_cols", "columns of a window of taps", "columns"),
    Field("element_bytes", "element", "bytes"),
    Field("tiles", "tiles of a block"),
    Field("sm.count", "SMs", "SMs"),
    Field("sm.fma_per_cycle", "MACs of an SM in a cycle", "MACs"),
    Field("sm.shared", "shared memory of an SM"),
    Field("sm.unified", "L1 cache and shared memory of an SM"),
    Field("sm.shared_bytes_per_cycle", "shared memory's bytes in a cycle", "bytes"),
    Field("sm.registers", "registers of an SM", "registers"),
    Field("sm.registers_per_output", "registers for an output of a tile", "registers"),
    Field("sm.blocks", "blocks that an SM holds", "blocks"),
    Field("sm.load_bytes_per_cycle", "loaded by an SM in a cycle", "bytes"),
    Field("sm.loads_under_way", "k-steps loaded ahead", "k-steps"),
    Field("sm.async_copy", "asynchronous copies to shared memory"),
    Field("sm.step_cycles", "beside storing and multiplying in a k-step", "cycles"),
    Field("sm.tap_cycles", "offsets of a tap", "cycles"),
    Field("sm.epilogue_bytes_per_cycle", "written by an SM in a cycle", "bytes"),
    Field("l2.size", "L2"),
    Field("l2.bytes_per_cycle", "handed out by L2 in a cycle", "bytes"),
    Field("l2.latency_cycles", "latency of L2", "cycles"),
    Field("l2.sector_bytes", "sector of L2", "bytes"),
    Field("dram.bandwidth", "DRAM bandwidth"),
    Field("dram.reached", "share of the DRAM bandwidth that is reached"),
    Field("dram.capacity", "capacity of DRAM"),
    Field("launch.kernel", "launch of a kernel"),
    Field("launch.offsets", "kernel that works out offsets"),
    Field("launch.reduction", "sums of parts beyond their bytes"),
    Field("launch.strided", "what strides take beyond"),
    Field("mapping.k_step", "channels of a k-step", "channels"),
    Field("mapping.tile", "tile of a block"),
    Field("mapping.split_k", "sums cut among blocks"),
    Field("mapping.pad_taps", "taps that begin a k-step each"),
    Field("mapping.order", "order of taps and channels"),
    Field("mapping.reuse", "elements read once for several taps"),
    Field("family", "kind of machine"),
    Field("technology", "technology of areas and energies"),
    # Of a language model it counts sequences.
    Field("batch", "batch"),
    Field("lowering", "how layers become passes"),
    Field("hardware", "machine"),
    Field("phase", "phase of the network"),
    Field("weights", "how HBM has weights"),
    Field("caches", "how HBM has caches"),
    Field("dtype", "type of numbers"),
    Field("prompt", "prompt", "tokens"),
)}  # fmt: skip


def field_of(path: str) -> Field:
    """Return the field of a path; of a layer's, "kernel of conv1"; of a workload's, "size seq"; an unknown path is its
    own label.
    """
    if path.startswith("layers."):
        name, _, field = path.removeprefix("layers.").rpartition(".")
        return Field(path, f"{field.replace('_', ' ')} of {name}")
    if path.startswith("sizes."):
        return Field(path, f"size {path.removeprefix('sizes.')}")
    return FIELDS.get(path, Field(path, path))


def axis_title(axis: str) -> str:
    """Return the title of an axis of a sweep, which may be several fields with commas between them."""
    return ", ".join(field_of(path.strip()).title for path in axis.split(","))


def by_path(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field of a machine in its YAML form: ("array.rows", 128)."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from by_path(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
