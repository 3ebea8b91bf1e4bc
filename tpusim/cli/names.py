"""Names that help texts list, without importing what they name; a test compares each with its registry."""

from __future__ import annotations

ENGINES = {
    "event": "fast",
    "simpy": "the same rules to read",
    "register": "every register in every cycle",
    "both": "all that apply, and must agree",
}
"""Engines that keep time, and a word on each."""
DTYPES = ("integers", "f32", "bf16", "f16", "f8", "int8")
REALS = ("f32", "bf16", "f16", "f8", "int8")
"""Types of the elements of a collective."""
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "permute")
SUMS = ("any", "array")
OPS = ("all", "array")
NARROW = ("int8", "int4")
MODELS = ("one_pass", "clocked", "both")
LAYER_ORDERS = ("change", "ratio", "network")
NUMBER_WORDS = ("estimated", "scheduled", "measured", "simulated")
MEMORY_SETS = "dram"
"""Name for all sets of the DRAM; the name of each set begins with it."""
COLLECTIVE_SETS = "collectives"
"""Name for all sets of collectives; the name of each begins with it."""
POD_SETS = "pods"
"""Name for all sets of networks that chips share; the name of each begins with it."""
NETWORK_SETS = "networks"
"""Name for all sets of operations of whole networks."""
OPTIMIZERS = ("sgd", "adam")
GPU_SETS = "deepbench"
"""Name for all sets of GPUs; the name of each set begins with it."""
NUMBER_SETS = (
    "gemm", "resnet50", "vgg16", "yolov2", "micro", "first_layers", "fresh", "batch", "1x1", "3x3", "thin",
    "large_kernels", "scheduled_first", "scheduled_1x1", "scheduled_3x3", "scheduled_large", "depthwise",
    "dilated", "grouped", "transposed", "gradients_forward", "gradients_filter", "gradients_input", "gradients_strided",
    "scheduled_gradients", "vector_ops", "network_resnet18", "network_resnet50", "network_vgg16",
    "network_yolov2", "network_bert_layer", "scheduled_resnet50", "scheduled_vgg16", "scheduled_pooling",
    "v3_estimated", "v3_scheduled", "v3", "v3_odd", "training",
)  # fmt: skip
GENERATION_SETS = (
    "generations", "code_v2", "code_v3", "code_v4", "code_v5e", "code_v5p", "code_v6e", "code_v7x", "passes", "chips",
    "v3_tiles", "v6e_measured", "v4_measured", "v7x_measured", "models_measured", "fused", "llm",
)  # fmt: skip
"""What stands for sets of all TPUs: all of them in one table, a generation's code and estimates, passes of the
array, and what was timed on chips.
"""
ASKED_SETS = (
    *NUMBER_WORDS, *NUMBER_SETS, NETWORK_SETS, MEMORY_SETS, GPU_SETS, COLLECTIVE_SETS, POD_SETS, *GENERATION_SETS,
)  # fmt: skip
"""All that --set-of-numbers takes."""
EXHIBITS = (
    "table1", "table2", "1", "2a", "2b", "3", "4a", "4b", "5", "6", "7", "8", "10", "11", "12", "13a", "13b",
    "14a", "14b", "15a", "15b", "16a", "16b", "17", "18a", "18b", "chip",
)  # fmt: skip
TRACE_FORMATS = (".txt", ".png", ".svg", ".pdf", ".vcd", ".perfetto-trace", ".pftrace", ".json")
BATCH = 8
"""Images at a time, if no batch is given."""
MOST_IMAGES = 2**16
MOST_TOKENS = 2**20
"""Most tokens of a generation."""
MOST_NUMBER = 2**63 - 1
"""Largest seed and cycle number."""
RESULT_FILE = "run.json"
GENERATION_FILE = "generation.json"
PAGE_FILE = "report.html"
