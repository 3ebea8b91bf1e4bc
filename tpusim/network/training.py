"""A training step of a network: its layers, those of the way back, and the updates of its weights.

The step is a workload like any other. Every layer of it names what it reads, so that what is kept for the way back
counts in HBM for as long as somebody will read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod
from string import digits
from typing import Any

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.network.backward import BACKWARD_OF, Gradients, Value, normalised, normalised_gradient
from tpusim.network.offload import offloaded
from tpusim.network.ops import OPS
from tpusim.network.ops.op import OFMAP, Op, Shape
from tpusim.network.ops.pool2d import GRADIENTS_OF, Pool2d
from tpusim.network.workload import ALL, BACKWARD, FORWARD, INPUT, NONE, UPDATE, LayerBlock, Source, Training, Workload

USUAL = Training()
AGAIN = ".again"
"""End of the names of layers that are computed once more."""
ENDS = frozenset(
    (
        *("again", "bias", "choice", "db", "dother", "dw", "dx", "dy", "gradient", "labels", "loss", "norm"),
        *("offload", "reload", "send", "so_far", "sum"),
        *("dgate", "dpart", "dscale", "dshift", "normalised", "ones", "taken", "zeros"),
        *("beta", "centred", "dbeta", "dgamma", "gamma", "mean", "offset", "scale", "shift", "slope", "variance"),
    )
)
"""Words that follow a layer's name in names of layers and weights that a step adds, beside the names of its tensors."""


def training_step(workload: Workload, training: Training | None = None) -> Workload:
    """Return the workload of a training step: forward, backward and update, each layer with its phase.

    The loss is the cross-entropy of the last layer's rows; where that makes maps, their gradient comes from outside, as
    the input `gradient`.

    Args:
        workload: a network whose file says which layer reads which; a chain where it says nothing.
        training: in place of what the workload's file says.

    Raises:
        InputError: a layer has no gradient here, names every such layer; or a name or a pattern fits no layer.

    Examples:
        >>> import tpusim
        >>> step = tpusim.training_step(tpusim.load_workload("alexnet", batch=2, ops="all"))
        >>> len(step.layers), step.phases[-1]
        (64, ('fc8.filter.update', 'update'))
    """
    if not isinstance(workload, Workload):
        raise InputError(f"{workload!r:.80} is no Workload; give what tpusim.load_workload(...) returns")
    asked = training or workload.training or USUAL
    return offloaded(on_chip_step(workload, asked), asked.offload)


def on_chip_step(workload: Workload, asked: Training) -> Workload:
    """Return the training step of which nothing goes to the host. Raises InputError as `training_step` does."""
    if problems := [*_unknown(workload), *_in_part(workload), *_narrow(workload), *_unfit(workload, asked)]:
        raise InputError(problems)
    return _StepWriter(*_told_apart(workload, asked)).workload()


def _told_apart(network: Workload, training: Training) -> tuple[Workload, Training]:
    """Return a network none of whose layers is called like a layer that the step adds to another, with `conv_norm` for
    a `conv.norm` beside a `conv`; and what is asked by the names that layers have then.
    """
    own = dict.fromkeys(each.name for each in network.layers)
    own |= dict.fromkeys(name for _, sources in network.edges for source in sources for name in source.names)
    ends = {*ENDS, *(tensor for layer in network.layers for tensor in layer.reads(network.batch))}
    called: dict[str, str] = {}
    for name in own:
        parts = name.split(".")
        if any(".".join(parts[:at]) in own and parts[at].rstrip(digits) in ends for at in range(1, len(parts))):
            free = "_".join(parts)
            while free in own or free in called.values():
                free += "_"
            called[name] = free
    if not called:
        return network, training

    def renamed(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(called.get(name, name) for name in names)

    def meant(patterns: Sequence[str]) -> tuple[str, ...]:
        return renamed(name for name in own if any(fnmatchcase(name, each) for each in patterns))

    keep = meant(training.keep) if isinstance(training.keep, tuple) else training.keep
    found = replace(
        network,
        layers=tuple(replace(each, name=called.get(each.name, each.name)) for each in network.layers),
        lowerings=tuple(replace(each, layer=called.get(each.layer, each.layer)) for each in network.lowerings),
        edges=tuple(
            (called.get(name, name), tuple(each._replace(names=renamed(each.names)) for each in sources))
            for name, sources in network.edges
        ),
        biases=renamed(network.biases),
        blocks=tuple(LayerBlock(tuple(map(renamed, block.copies))) for block in network.blocks),
    )
    return found, replace(training, batch_norm=meant(training.batch_norm), keep=keep)


def _in_part(workload: Workload) -> Iterator[Problem]:
    """Yield an error for each layer whose outputs others read in part, unless such parts are together the whole."""
    made = {layer.name: prod(layer.shapes(workload.batch)[OFMAP]) for layer in workload.layers}
    parts: dict[str, list[int]] = {}
    for name, operands in operands_of(workload):
        for each in operands:
            there, read = sum(made.get(source, 0) for source in each.names), prod(each.shape)
            if read == there or not all(source in made for source in each.names):
                continue
            if len(each.names) == 1 and read < there:
                parts.setdefault(each.names[0], []).append(read)
                continue
            if workload.mesh and len(each.names) == 1 and read % there == 0:
                # It reads what other chips have made, too.
                continue
            says = f"it reads {read:,} elements of the {there:,} that {', '.join(each.names[:3])} made"
            yield Problem(f"{says}, and gradients of such a part are not known; let it read each once", f"layer {name}")
    for name, taken in parts.items():
        if sum(taken) != made[name] and not _is_share(workload, taken, made[name]):
            says = f"layers that read a part of it read {sum(taken):,} elements in all, and it has {made[name]:,}"
            do = "gradients are known where each is read once; an attention reads so with blocks: 1"
            yield Problem(f"{says}; {do}", f"layer {name}")


def _is_share(workload: Workload, read: Sequence[int], made: int) -> bool:
    """Whether readers of parts read those of one chip, of what all chips of the network's mesh have."""
    return bool(workload.mesh) and len({*read}) == 1 and made % read[0] == 0


def _narrow(workload: Workload) -> Iterator[Problem]:
    """Yield an error where weights are whole numbers."""
    if workload.narrow:
        first = next(iter(workload.narrow))
        says = f"an update changes weights by less than a step of their type, such as those of {first}"
        yield Problem(f"{says}; store all as computed", "training")


def _unknown(workload: Workload) -> Iterator[Problem]:
    """Yield an error that names the layers whose gradient is not known, op by op."""
    lacking: dict[str, list[str]] = {}
    for layer in workload.layers:
        if layer.op not in BACKWARD_OF:
            lacking.setdefault(layer.op, []).append(layer.name)
        elif isinstance(layer, Pool2d) and layer.kind not in GRADIENTS_OF:
            lacking.setdefault(f"{layer.op} of kind {layer.kind}", []).append(layer.name)
    for op, names in lacking.items():
        says = f"{counted(len(names), 'layer')} of {op}, such as {names[0]}, without a known gradient"
        yield Problem(f"{says}; ops of a training step: {', '.join(sorted(BACKWARD_OF))}", f"network {workload.name}")


def _unfit(workload: Workload, training: Training) -> Iterator[Problem]:
    for name in {layer.name for layer in workload.layers} & {"labels", "gradient"}:
        says = f"layer {name} has the name of an input of the training step; name the layer otherwise"
        yield Problem(says, f"network {workload.name}")
    for (key, _), says in training.misnamed(workload.layers):
        yield Problem(says, f"training.{key}")


class _StepWriter:
    """A step while it is written.

    Attributes:
        layers, edges, phases: of the step so far.
    """

    def __init__(self, network: Workload, training: Training) -> None:
        self.network, self.training, self.batch = network, training, network.batch
        self.layers: list[Op] = []
        self.edges: dict[str, tuple[Source, ...]] = {}
        self.phases: dict[str, str] = {}
        self._own = {layer.name: layer for layer in network.layers}
        self._reads = dict(operands_of(network))
        self._results: dict[str, Value] = {}
        self._made: dict[str, Value] = {}
        """By layer of the network what its readers read: its result, or what a batch normalisation makes of that."""
        self._again: dict[str, Value] = {}
        """Values that were computed once more, by the names of what was not kept."""
        self._gradients: dict[str, list[Value]] = {name: [] for name in self._own}
        self._of_own_parts: defaultdict[str, list[Value]] = defaultdict(list)
        """By layer the gradients of readers that take one chip's part of what all chips have."""
        self._updates: list[tuple[str, str, Shape, Value]] = []
        self._of = ""
        """The layer of the network for which layers are added."""
        self._added: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        """Names of the layers that were added for each, by phase."""
        self._trained: set[str] = set()
        for layer in network.layers:
            read = {name for operand in self._reads[layer.name] for name in operand.names}
            weights = any(operand.weights for operand in self._reads[layer.name])
            if weights or self.is_normalised(layer) or read & self._trained:
                self._trained.add(layer.name)

    def workload(self) -> Workload:
        """The whole step."""
        for layer in self.network.layers:
            self._of = layer.name
            made = self._computed(layer, "", self._made.__getitem__, FORWARD)
            self._results[layer.name] = self._made[layer.name] = made
            if self.is_normalised(layer):
                self._made[layer.name] = normalised(self, f"{layer.name}.norm", made, "", FORWARD)
        self._of = ""
        self._losses()
        for layer in reversed(self.network.layers):
            self._of = layer.name
            self._backward(layer)
        # Weights are needed as they were until the last gradient is there.
        for of, name, shape, gradient in reversed(self._updates):
            self._of = of
            self._updated(name, shape, gradient)
        # On the way back the last copy of a block comes first.
        blocks = (
            LayerBlock(tuple(tuple(name for of in copy for name in self._added[of, phase]) for copy in block.copies))
            for phase in (FORWARD, UPDATE)
            for block in self.network.blocks
        )
        return self.network.made_of(
            self.layers, name=f"{self.network.name}_training", biases=(),
            edges=tuple(self.edges.items()), phases=tuple(self.phases.items()), blocks=tuple(blocks),
        )  # fmt: skip

    # ---- one layer of the step

    def add(self, layer: Op, *reads: Value, phase: str = BACKWARD) -> Value:
        """Add a layer that reads these; return its output."""
        self.layers.append(layer)
        self.edges[layer.name] = tuple(each.source for each in reads)
        self.phases[layer.name] = phase
        self._added[self._of, phase].append(layer.name)
        return Value((layer.name,), layer.shapes(self.batch)[OFMAP])

    def map(self, op: str, name: str, shape: Shape, *reads: Value, phase: str = BACKWARD, **more: Any) -> Value:
        """Add an op of the vector unit on maps of a shape."""
        return self.add(map_op(op, name, shape, self.batch, **more), *reads, phase=phase)

    def update(self, name: str, shape: Shape, gradient: Value) -> None:
        """Note weights that are to be updated by their gradient."""
        self._updates.append((self._of, name, shape, gradient))

    def is_needed(self, operand: Value) -> bool:
        """Whether a layer that trains, or one ahead of it, made an operand."""
        return any(name in self._trained for name in operand.names)

    def is_normalised(self, layer: Op) -> bool:
        """Whether a batch normalisation comes behind a layer of the network."""
        named = any(fnmatchcase(layer.name, each) for each in self.training.batch_norm)
        return named and layer.unit == "array" and layer.spatial

    def operand(self, operand: Value) -> Value:
        """An operand of the network's layer, for the way back: kept, or computed again."""
        return self._side_by_side(operand, self._kept)

    def result(self, layer: Op) -> Value:
        """The result of the network's layer, for the way back."""
        return self._kept(layer.name)

    # ---- forward

    def _computed(self, layer: Op, again: str, read: Callable[[str], Value], phase: str) -> Value:
        """Add a layer of the network; `again` ends the name of a copy."""
        operands = [self._side_by_side(each, read) for each in self._reads[layer.name]]
        if layer.op == "scale_shift":
            return normalised(self, layer.name, operands[0], again, phase)
        return self.add(replace(layer, name=layer.name + again), *operands, phase=phase)

    def _side_by_side(self, operand: Value, read: Callable[[str], Value]) -> Value:
        """An operand whose values are those that `read` gives."""
        every = [read(name) if name in self._own else Value((name,), operand.shape) for name in operand.names]
        direct = operand.direct and all(each.direct for each in every)
        return Value(tuple(name for each in every for name in each.names), operand.shape, direct)

    def _keeps(self, name: str) -> bool:
        """Whether what a layer of the network makes is there for the way back."""
        keep = self.training.keep
        return keep == ALL or (keep != NONE and any(fnmatchcase(name, each) for each in keep))

    def _raw(self, name: str) -> Value:
        """The result of a layer of the network, for the way back, ahead of its batch normalisation."""
        if self._keeps(name):
            return self._results[name]
        if name not in self._again:
            self._compute_again(name)
            self._again[name] = self._computed(self._own[name], AGAIN, self._kept, BACKWARD)
        return self._again[name]

    def _compute_again(self, name: str) -> None:
        """Compute again what a layer of the network reads, and what that was made of, however long the way is."""
        due = [name]
        while due:
            read = (one for operand in self._reads[due[-1]] for one in operand.names)
            if (lacking := next((one for one in read if self._lacks(one)), None)) is not None:
                due.append(lacking)
            elif (done := due.pop()) != name:
                self._kept(done)

    def _lacks(self, name: str) -> bool:
        """Whether readers on the way back read a layer of the network that is yet to be computed again."""
        if name not in self._own or self._keeps(name):
            return False
        return name not in self._again or (self.is_normalised(self._own[name]) and f"{name}.norm" not in self._again)

    def _kept(self, name: str) -> Value:
        """What readers of a layer of the network read on the way back."""
        if self._keeps(name):
            return self._made[name]
        raw, norm = self._raw(name), f"{name}.norm"
        if not self.is_normalised(self._own[name]):
            return raw
        if norm not in self._again:
            self._again[norm] = normalised(self, norm, raw, AGAIN, BACKWARD)
        return self._again[norm]

    def _losses(self) -> None:
        """Add the loss of each output of the network, and the gradient of it."""
        read = {name for operands in self._reads.values() for operand in operands for name in operand.names}
        ends = [name for name in self._own if name not in read]
        for name in ends:
            layer, made, apart = self._own[name], self._made[name], f"{name}." if len(ends) > 1 else ""
            if layer.op == "softmax":
                # The loss has a softmax of its own.
                (made,) = (self._side_by_side(each, self._made.__getitem__) for each in self._reads[name])
            shape = made.shape
            if shape[1] * shape[2] > 1 or layer.op in ("layer_norm", "rms_norm"):
                gradient = Value((f"{apart}gradient",), shape)
            else:
                labels = Value((f"{apart}labels",), shape)
                self.map("cross_entropy", f"{name}.loss", shape, made, labels, phase=FORWARD)
                part = 1 / shape[3]
                gradient = self.map("cross_entropy_gradient", f"{name}.loss.dx", shape, made, labels, factor=part)
            if layer.op == "softmax":
                self._handed_on(self._reads[name], [gradient])
            else:
                self._gradients[name].append(gradient)

    # ---- backward

    def _shape(self, name: str) -> Shape:
        """The shape of what a layer of the network makes."""
        return self._own[name].shapes(self.batch)[OFMAP]

    def _backward(self, layer: Op) -> None:
        """Add the gradients of a layer's operands and weights."""
        gradient = self._gathered(layer.name)
        if gradient is None or layer.name not in self._trained:
            return
        if self.is_normalised(layer):
            gradient = normalised_gradient(self, f"{layer.name}.norm", self._raw(layer.name), gradient)
        self._handed_on(self._reads[layer.name], BACKWARD_OF[layer.op](self, layer, self._reads[layer.name], gradient))

    def _handed_on(self, operands: Sequence[Value], gradients: Gradients) -> None:
        """Give the makers of operands their parts of a gradient."""
        for operand, gradient in zip(operands, gradients, strict=False):
            for name in operand.names:
                if gradient and name in self._trained:
                    # Of a layer alone its reader may have seen a part.
                    shape = operand.shape if len(operand.names) == 1 else self._shape(name)
                    direct = gradient.direct and operand.direct and len(operand.names) == 1
                    if prod(shape) > prod(self._shape(name)):
                        # Of what chips have gathered, each takes the gradient of its own part.
                        shape, direct = self._shape(name), False
                    # Of one chip only a view tells parts apart; without one all its readers take the same.
                    own = self.network.mesh and operand.direct and prod(shape) < prod(self._shape(name))
                    handed = self._of_own_parts if own else self._gradients
                    handed[name].append(Value(gradient.names, shape, direct))

    def _gathered(self, name: str) -> Value | None:
        """The gradient of a layer's result: the sum of what its readers have handed on."""
        shape, parts = self._shape(name), list[Value]()
        pieces: list[Value] = []
        for each in self._gradients.pop(name):
            if prod(each.shape) == prod(shape):
                parts.append(replace(each, shape=shape))
            else:
                pieces.append(each)
        sizes, own = [prod(each.shape) for each in pieces], self._of_own_parts.pop(name, [])
        if pieces and sum(sizes) != prod(shape) and _is_share(self.network, sizes, prod(shape)):
            own, pieces = [*own, *pieces], []
        if own:
            # Other chips have the gradients of their parts.
            parts.append(Value(self._sum(f"{name}.dpart", own).names, shape, direct=False))
        # Pieces of those who have read a part are together the whole.
        names = tuple(name for each in pieces for name in each.names)
        parts += [Value(names, shape, direct=False)] if pieces else []
        if not parts:
            return None
        return self._sum(f"{name}.dy", parts)

    def _sum(self, name: str, parts: Sequence[Value]) -> Value:
        """Add up gradients that are alike, one after another; the last sum has the name."""
        whole, *others = parts
        for number, part in enumerate(others, 2):
            last = number == len(parts)
            whole = self.map("add", name if last else f"{name}{number}", whole.shape, whole, part)
        return whole

    # ---- update

    def _updated(self, name: str, shape: Shape, gradient: Value) -> None:
        """Add the update of some weights; these, and what an optimizer keeps of the last update, lie in HBM."""
        training, first, weights = self.training, self.training.momentum, Value((name,), shape)
        if training.optimizer == "adam":
            shares = {"factor": first, "other_factor": 1 - first}
            kept = [Value((f"{name}.last_{each}",), shape) for each in ("mean", "squares")]
            mean = self.map("weighted_sum", f"{name}.mean", shape, kept[0], gradient, phase=UPDATE, **shares)
            squares = self.map(
                "adam_second", f"{name}.squares", shape, kept[1], gradient, phase=UPDATE, decay=training.second
            )
            more = {"rate": training.rate, "epsilon": training.epsilon}
            self.map("adam_step", f"{name}.update", shape, weights, mean, squares, phase=UPDATE, **more)
            return
        velocity = gradient
        if first:
            last, faded = Value((f"{name}.last_velocity",), shape), {"factor": first, "other_factor": 1.0}
            velocity = self.map("weighted_sum", f"{name}.velocity", shape, last, gradient, phase=UPDATE, **faded)
        step = {"factor": 1.0, "other_factor": -training.rate}
        self.map("weighted_sum", f"{name}.update", shape, weights, velocity, phase=UPDATE, **step)


def map_op(op: str, name: str, shape: Shape, batch: int, **more: Any) -> Op:
    """An op of the vector unit on maps, or rows, of a shape."""
    made: Any = OPS[op]
    channels, height, width, images = shape
    sides = {"height": height, "width": width} if not made.whole_rows else {}
    layer: Op = made(name, channels=channels, **sides, images=0 if images == batch else images, **more)
    return layer


def operands_of(network: Workload) -> Iterator[tuple[str, tuple[Value, ...]]]:
    """Yield each layer with its operands: what others make, what comes from outside, and weights.

    Where nothing is said of a layer, it reads the one ahead.
    """
    known, ahead = network.sources(), INPUT
    for layer in network.layers:
        sources = known.get(layer.name, (Source((ahead,)),))
        operands = list[Value]()
        for at, (tensor, shape) in enumerate(layer.reads(network.batch).items()):
            source = sources[at] if at < len(sources) and layer.op != "embedding" else Source(())
            weights = not source.names
            names = (f"{layer.name}.{tensor}",) if weights else source.names
            operands.append(Value(names, shape, source.direct, weights))
        yield layer.name, tuple(operands)
        ahead = layer.name
