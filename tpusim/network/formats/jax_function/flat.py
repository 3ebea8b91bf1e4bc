"""A function of JAX as a flat list of nodes: calls are put in place, scans unrolled, conditions that are known decided.

What follows from constants alone JAX itself works out. What nothing reads is left out. Some primitives in a row are one
node here, as one layer computes them: a mean, a softmax.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, product
from math import gcd, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpusim.network.formats.jax_function.exchanges import EXCHANGES, exchanges_of
from tpusim.network.formats.jax_function.layers import ValueShape, cut_off, forward, forward_side
from tpusim.network.formats.jax_function.nodes import FlatGraph
from tpusim.network.formats.jax_function.patterns import PATTERNS
from tpusim.network.formats.jax_function.sharded import body_of
from tpusim.network.formats.jax_function.source_lines import line_of, of_a_library
from tpusim.network.formats.jax_function.written_out import WRITTEN_OUT
from tpusim.network.formats.layer_of_node import UnfitNode
from tpusim.network.graph import Node, ValueExchange, after

_SAME = frozenset({"copy", "copy_p", "name", "optimization_barrier", "pvary", "sharding_constraint", "stop_gradient"})
"""Primitives whose results are their operands."""
_SPREAD = frozenset({
    "add", "add_any", "and", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "or", "pow", "rem", "sub",
    "xor",
})  # fmt: skip
"""Primitives of two operands, of which one may have fewer elements."""
_SCOPE = re.compile(r"(?:\w+\()*([\w.-]*)\)*")
"""A scope, within the names of what JAX made of it: transpose(jvp(attention))."""
MOST_STEPS = 1000
"""Most steps of a scan: longer ones make more layers than anybody reads, or waits for."""
_MOST_PLACES = 1000
"""Most places of a window that become a product each."""


def flattened(
    closed: Any, inputs: Sequence[str], outputs: Sequence[str], batch: int = 0, given: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> FlatGraph:  # fmt: skip
    """Make a closed jaxpr flat; its inputs and outputs have these names. Inputs that are `given` tell sizes, where
    sizes are values. Chips of a `mesh` may exchange values.

    On the way back convolutions are filled up with images of zeros to whole batches of `batch`, and gradients by
    filters sum over a batch. With `batch` 0 it is the largest number that divides the images of all convolutions.
    """
    work = _Flattening(batch, given or {}, mesh or {})
    for name, var in zip(inputs, closed.jaxpr.invars, strict=True):
        work.known(name, var.aval)
    ends = work.put(closed, inputs)
    work.finish(ends, outputs)
    flat = work.flat
    flat.inputs, flat.outputs = inputs, outputs
    flat.put(flat.nodes)
    for pattern in (*PATTERNS, *WRITTEN_OUT):
        flat.put(pattern(flat))
    return flat


class _Flattening:
    """The nodes so far; each method that adds some returns the names of their results."""

    def __init__(self, batch: int, arguments: Mapping[str, Any], mesh: Mapping[str, int]) -> None:
        self.flat, self._batch, self._counts = FlatGraph(), batch, not batch
        self._arguments, self._mesh = arguments, mesh
        self._numbers = defaultdict[str, Iterator[int]](lambda: count(1))
        self._spread = dict[str, tuple[str, ValueShape]]()
        """By a value that is spread over more elements what it is spread from, and its shape with axes of one."""
        self._stack = ""
        """The scopes around the primitive that is read, as JAX writes them."""
        self._line, self._of_caller = "", False
        """The source line of that primitive; and whether it is that of a call of a library, whatever stands inside."""

    def known(self, name: str, aval: Any) -> str:
        """Note the shape and the type of a value."""
        dtype = getattr(aval, "dtype", None)
        self.flat.shapes[name] = tuple(aval.shape)
        # Random keys have a type of their own, which only JAX knows.
        self.flat.types[name] = np.dtype(dtype) if isinstance(dtype, np.dtype) else np.dtype(object)
        return name

    def put(self, closed: Any, names: Sequence[str]) -> list[str]:
        """Put the body of a function here, for operands of these names."""
        jaxpr = getattr(closed, "jaxpr", closed)
        held = [self._constant(each) for each in getattr(closed, "consts", ())]
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*held, *names), strict=True))

        def named(var: Any) -> str:
            return self._constant(var.val, var.aval) if hasattr(var, "val") else env[var]

        outer = self._stack
        for eqn in jaxpr.eqns:
            self._stack = f"{outer}/{eqn.source_info.name_stack}"
            if not self._of_caller:
                self._line = line_of(eqn)
            made = self._equation(eqn, [named(each) for each in eqn.invars])
            env.update(zip(eqn.outvars, made, strict=True))
        self._stack = outer
        return [named(each) for each in jaxpr.outvars]

    def finish(self, ends: Sequence[str], outputs: Sequence[str]) -> None:
        """Give the values at the end the names of the outputs; what is an input, a constant or twice one is copied."""
        fixed = {*self.flat.shapes} - {name for node in self.flat.nodes for name in node.outputs}
        renamed = dict[str, str]()
        for end, output in zip(ends, outputs, strict=True):
            if end in fixed or end in renamed:
                self.flat.nodes.append(Node("copy", output, (end,), (output,), {}))
            else:
                renamed[end] = output
            self.flat.shapes[output], self.flat.types[output] = self.flat.shapes[end], self.flat.types[end]
            self.flat.lines[output] = self.flat.lines.get(end, "")
            if why := self.flat.refused.get(end):
                self.flat.refused[output] = why

        def now(names: Sequence[str]) -> tuple[str, ...]:
            return tuple(renamed.get(name, name) for name in names)

        self.flat.nodes = [replace(each, inputs=now(each.inputs), outputs=now(each.outputs))
                           for each in self.flat.nodes]  # fmt: skip

    # ---- one primitive

    def _equation(self, eqn: Any, given: Sequence[str]) -> Sequence[str]:
        op, said = eqn.primitive.name, eqn.params
        if op in _SAME or (op == "max" and self.flat.number(given[0]) == -np.inf):
            # The larger of anything and the least number is the former.
            return given[-len(eqn.outvars) :]
        if op == "axis_index":
            return [self._place_along(str(said["axis_name"]), eqn.outvars[0].aval)]
        if op in EXCHANGES:
            return self._exchanged(op, said, given, [each.aval for each in eqn.outvars])
        if (body := body_of(eqn)) is not None:
            return self._called(body, given)
        if op == "scan" and said["length"] <= MOST_STEPS:
            return self._scan(said, given)
        if op == "cond" and given[0] in self.flat.constants:
            which = int(np.clip(self.flat.number(given[0]) or 0, 0, len(said["branches"]) - 1))
            return self.put(said["branches"][which], given[1:])
        if op == "select_n" and (case := self.flat.number(given[0])) is not None:
            # A choice that is the same everywhere is none.
            return [given[1 + int(case)]]
        moves = op in ("broadcast_in_dim", "reshape") and not said.get("dimensions")
        if moves and eqn.outvars[0].aval.shape == self.flat.shapes[given[0]]:
            return given
        if op == "broadcast_in_dim":
            narrow = _narrow(self.flat.shapes[given[0]], eqn.outvars[0].aval.shape, said["broadcast_dimensions"])
        if all(name in self.flat.constants for name in given):
            made = self._worked_out(eqn, given)
        elif op in ("stack", "tile", "unstack"):
            return self._piled(op, said, given, [each.aval for each in eqn.outvars])
        elif op == "conv_general_dilated":
            return [self._convolution(eqn, *given)]
        elif op == "ragged_dot_general" and (rows := self._rows_of_groups(said, given)) is not None:
            return [self._group_by_group(given, rows, eqn.outvars[0].aval)]
        else:
            made = self._added(op, self._narrowed(op, given, eqn), [each.aval for each in eqn.outvars], said)
        if op == "broadcast_in_dim" and prod(narrow) < prod(eqn.outvars[0].aval.shape):
            self._spread[made[0]] = given[0], narrow
        return made

    def _called(self, body: Any, given: Sequence[str]) -> list[str]:
        """Put the body of a call here. JAX traces a function of a library once: its lines are those of the first call,
        and this call's own line stands for them.
        """
        outer, of_caller = self._line, self._of_caller
        self._of_caller |= bool(outer) and of_a_library(body)
        made = self.put(body, given)
        self._line, self._of_caller = outer, of_caller
        return made

    def add(self, op: str, given: Sequence[str], aval: Any, **attributes: Any) -> str:
        """Add a node of one result."""
        return self._added(op, given, [aval], attributes)[0]

    def _added(self, op: str, given: Sequence[str], avals: Sequence[Any], said: Mapping[str, Any]) -> list[str]:
        names = [self.known(self._named(op), each) for each in avals]
        plain = {name: str(each) if name == "mode" or isinstance(each, np.dtype) else each
                 for name, each in said.items()}  # fmt: skip
        self.flat.nodes.append(Node(op, f"{_label(self._stack)}{op}", tuple(given), tuple(names), plain))
        self.flat.lines |= dict.fromkeys(names, self._line)
        return names

    def _moved(self, op: str, given: Sequence[str], shape: Sequence[int], **attributes: Any) -> str:
        """Add a node that makes a value of another shape of the first operand's type."""
        return self.add(op, given, jax.ShapeDtypeStruct(tuple(shape), self.flat.types[given[0]]), **attributes)

    def _named(self, op: str) -> str:
        # No name of an argument has this sign.
        return f"{op}:{next(self._numbers[op])}"

    def _constant(self, value: Any, aval: Any = None) -> str:
        name = self.known(self._named("constant"), aval or jax.typeof(value))
        self.flat.constants[name] = value
        return name

    def _worked_out(self, eqn: Any, given: Sequence[str]) -> list[str]:
        """Let JAX compute what depends on constants alone; what is only spread takes no memory."""
        if eqn.primitive.name == "broadcast_in_dim" and given and self._type(given[0]) is not None:
            aval, value = eqn.outvars[0].aval, np.asarray(self.flat.constants[given[0]], self._type(given[0]))
            narrow = _narrow(value.shape, aval.shape, eqn.params["broadcast_dimensions"])
            return [self._constant(np.broadcast_to(value.reshape(narrow), aval.shape), aval)]
        values = [jnp.asarray(self.flat.constants[name], self._type(name)) for name in given]
        found = eqn.primitive.bind(*values, **eqn.params)
        each = found if eqn.primitive.multiple_results else [found]
        return [self._constant(value, var.aval) for value, var in zip(each, eqn.outvars, strict=True)]

    def _type(self, name: str) -> Any:
        dtype = self.flat.types[name]
        return None if dtype.kind == "O" else dtype

    def _narrowed(self, op: str, given: Sequence[str], eqn: Any) -> Sequence[str]:
        """Return the operands of a primitive as they were before they were spread, unless none is left as large as the
        result.
        """
        if op not in _SPREAD:
            return given
        shape = tuple(eqn.outvars[0].aval.shape)
        whole = [name for name in given if name not in self._spread and self.flat.shapes[name] == shape]
        return [self._before(name) if whole and name in self._spread else name for name in given]

    def _before(self, name: str) -> str:
        """Return a value before it was spread: with as many axes as now, those that were added of one element."""
        source, shape = self._spread[name]
        if shape == self.flat.shapes[source]:
            return source
        if source in self.flat.constants:
            value = jnp.reshape(jnp.asarray(self.flat.constants[source]), shape)
            return self._constant(value)
        return self._moved("reshape", [source], shape, new_sizes=shape)

    # ---- between chips

    def _place_along(self, axis: str, aval: Any) -> str:
        """Add the place of a chip along an axis of the mesh."""
        if self._mesh.get(axis) == 1:
            return self._constant(jnp.zeros((), aval.dtype), aval)
        return self.add("axis_index", [], aval, over=(axis,))

    def _exchanged(self, op: str, said: Mapping[str, Any], given: Sequence[str], avals: Sequence[Any]) -> list[str]:
        """Add the exchanges that a primitive is, of each of its operands."""
        try:
            steps = exchanges_of(op, said, self._mesh)
        except UnfitNode as why:
            names = self._added(op, given, avals, said)
            self.flat.refused |= dict.fromkeys(names, str(why))
            return names
        made: list[str] = []
        for name, aval in zip(given, avals, strict=True):
            for step in steps:
                name = self._exchange(step, name, aval)
            made.append(self._shaped(name, aval.shape))
        return made

    def _exchange(self, step: ValueExchange, name: str, aval: Any) -> str:
        chips, shape = prod(self._mesh[each] for each in step.over), [*self.flat.shapes[name]]
        if step.op == "all_reduce" and name in self.flat.constants:
            value = jnp.asarray(self.flat.constants[name], self._type(name))
            return self._constant(value * chips if step.combine == "sum" else value, aval)
        if step.op == "all_gather" and len(shape) < len(aval.shape):
            # Parts stand along an axis of their own.
            shape.insert(step.axis, 1)
            name = self._shaped(name, shape)
        result = jax.ShapeDtypeStruct(after(step, shape, chips), self.flat.types[name])
        made = self.known(self._named(step.op), result)
        node = Node(step.op, f"{_label(self._stack)}{step.op}", (name,), (made,), {}, exchange=step)
        self.flat.nodes.append(node)
        self.flat.lines[made] = self._line
        return made

    # ---- loops

    def _scan(self, said: Mapping[str, Any], given: Sequence[str]) -> list[str]:
        """Unroll a scan: a step reads what all share, what the step before hands on, and its part of the others."""
        fixed, kept = said["num_consts"], said["num_carry"]
        shared, carried, parts = given[:fixed], [*given[fixed : fixed + kept]], given[fixed + kept :]
        steps = [*range(said["length"])][:: -1 if said["reverse"] else 1]
        told: dict[int, list[str]] = {}
        for step in steps:
            made = self.put(said["jaxpr"], [*shared, *carried, *(self._part(each, step) for each in parts)])
            carried, told[step] = made[:kept], made[kept:]
        outs = said["jaxpr"].out_avals[kept:]
        return [*carried, *(self._stacked([told[step][at] for step in sorted(told)], aval)
                            for at, aval in enumerate(outs))]  # fmt: skip

    def _part(self, name: str, at: int) -> str:
        """Return one element along the first axis."""
        _, *rest = self.flat.shapes[name]
        if name in self.flat.constants:
            return self._constant(self.flat.constants[name][at])
        starts, ends = [at, *[0] * len(rest)], [at + 1, *rest]
        cut = self._moved("slice", [name], (1, *rest), start_indices=starts, limit_indices=ends, strides=None)
        return self._moved("squeeze", [cut], rest, dimensions=(0,))

    def _stacked(self, names: Sequence[str], aval: Any) -> str:
        if not names:
            return self._constant(jnp.zeros((0, *aval.shape), aval.dtype))
        one = (1, *aval.shape)
        each = [self._moved("reshape", [name], one, new_sizes=one) for name in names]
        return self._moved("concatenate", each, (len(each), *aval.shape), dimension=0)

    def _piled(self, op: str, said: Mapping[str, Any], given: Sequence[str], avals: Sequence[Any]) -> list[str]:
        """Add values side by side along an axis of their own, what stands so taken apart, or one several times."""
        if op == "tile":
            (name,) = given
            for axis, times in enumerate(said["reps"]):
                shape = [*self.flat.shapes[name]]
                shape[axis] *= times
                name = self._moved("concatenate", [name] * times, shape, dimension=axis) if times > 1 else name
            return [name]
        axis = int(said["axis"])
        if op == "stack":
            single = (*avals[0].shape[:axis], 1, *avals[0].shape[axis + 1 :])
            each = [self._moved("reshape", [name], single, new_sizes=single) for name in given]
            return [self._moved("concatenate", each, avals[0].shape, dimension=axis)]
        wide, parts = self.flat.shapes[given[0]], list[str]()
        one = (*wide[:axis], 1, *wide[axis + 1 :])
        for at, aval in enumerate(avals):
            starts, ends = [0] * len(wide), [*wide]
            starts[axis], ends[axis] = at, at + 1
            cut = self._moved("slice", given, one, start_indices=starts, limit_indices=ends, strides=None)
            parts.append(self._moved("reshape", [cut], aval.shape, new_sizes=tuple(aval.shape)))
        return parts

    # ---- products of groups of rows, each by a matrix of its own

    def _rows_of_groups(self, said: Mapping[str, Any], given: Sequence[str]) -> list[int] | None:
        """Return how many rows each group has; None where that is not known, or the product is of another kind."""
        numbers = said["ragged_dot_dimension_numbers"]
        contracted, together_ = numbers.dot_dimension_numbers
        usual = [[*each] for each in (*contracted, *together_)] == [[1], [1], [], []]
        ragged = [*numbers.lhs_ragged_dimensions], [*numbers.rhs_group_dimensions]
        sizes = self.flat.constants.get(given[2], self._arguments.get(given[2]))
        if not usual or ragged != ([0], [0]) or sizes is None or np.ndim(sizes) != 1:
            return None
        return [int(each) for each in np.asarray(sizes)]

    def _group_by_group(self, given: Sequence[str], rows: Sequence[int], out: Any) -> str:
        """Add a product for each group that has rows, and their results one behind another; further rows are zero."""
        factors, matrices = given[:2]
        height, depth = self.flat.shapes[factors]
        width, first, made = out.shape[1], 0, list[str]()
        for group, many in enumerate(rows):
            last = min(first + many, height)
            if last > first:
                part = self._moved("slice", [factors], (last - first, depth), start_indices=[first, 0],
                                   limit_indices=[last, depth], strides=None)  # fmt: skip
                numbers = ((1,), (0,)), ((), ())
                shape = last - first, width
                weights = self._part(matrices, group)
                made.append(self._moved("dot_general", [part, weights], shape, dimension_numbers=numbers))
            first = max(first, last)
        if first < height:
            made.append(self._constant(jnp.zeros((height - first, width), out.dtype)))
        return made[0] if len(made) == 1 else self._moved("concatenate", made, out.shape, dimension=0)

    # ---- convolutions

    def _convolution(self, eqn: Any, maps: str, weights: str) -> str:
        """Add a convolution; what it cuts off its input is cut off before. On the way back it is a gradient, and one by
        a filter over other images than those of a batch is a product for each tap.
        """
        said, out, back = dict(eqn.params), eqn.outvars[0].aval, _is_gradient(self._stack)
        if back and (made := self._gradient(said, maps, weights, out)):
            return made
        spec = said["dimension_numbers"]
        if self._counts and not back:
            images = self.flat.shapes[maps][spec.lhs_spec[0]] // said["batch_group_count"]
            self._batch = gcd(self._batch, images)
        cuts = [(min(0, before), min(0, after)) for before, after in said["padding"]]
        if any(map(any, cuts)) and prod(said["lhs_dilation"]) == 1:
            shape = [*self.flat.shapes[maps]]
            starts, ends = [0] * len(shape), [*shape]
            for axis, (before, after) in zip(spec.lhs_spec[2:], cuts, strict=True):
                starts[axis], ends[axis] = -before, shape[axis] + after
            shape = [end - start for start, end in zip(starts, ends, strict=True)]
            maps = self._moved("slice", [maps], shape, start_indices=starts, limit_indices=ends, strides=None)
            said["padding"] = tuple((max(0, before), max(0, after)) for before, after in said["padding"])
        kernel = [self.flat.shapes[weights][axis] for axis in spec.rhs_spec[2:]]
        places = [out.shape[axis] for axis in spec.out_spec[2:]]
        if prod(said["lhs_dilation"]) > 1:
            return self._transposed(said, maps, weights, kernel, out)
        few = back and prod(places) <= _MOST_PLACES
        if few and not _is_turned(weights) and _is_a_map(said, kernel, places):
            return self._place_by_place(said, maps, weights, kernel, places, out)
        return self._in_batches(said, maps, weights, out)

    def _gradient(self, said: Mapping[str, Any], maps: str, weights: str, out: Any) -> str | None:
        """Add a convolution on the way back as a gradient; None where it is neither kind."""
        spec, fixed = said["dimension_numbers"], weights in self.flat.constants
        kernel = [self.flat.shapes[weights][axis] for axis in spec.rhs_spec[2:]]
        places = [out.shape[axis] for axis in spec.out_spec[2:]]
        made = ":" in weights and not fixed
        if not _is_turned(weights) and (made or _is_a_map(said, kernel, places)):
            found = self._by_filter(said, maps, weights, out)
            if found or not fixed:
                return found
        return self._by_input(said, maps, weights, out) if _is_turned(weights) or fixed else None

    def _by_filter(self, said: Mapping[str, Any], maps: str, window: str, out: Any) -> str | None:
        """Add the gradient of a convolution by its filter: its window is the gradient by the output, its places are the
        taps, and what it sums over are images and pixels. None where these are not the images of a batch.
        """
        spec, groups, shape = said["dimension_numbers"], said["feature_group_count"], self.flat.shapes[maps]
        # JAX exchanges images and channels, so that it sums over images.
        channels, images = (shape[axis] for axis in spec.lhs_spec[:2])
        if images // groups != self._batch or prod(said["lhs_dilation"]) > 1:
            return None
        starts, ends, steps, sides = [0] * len(shape), [*shape], [1] * len(shape), []
        for at, axis in enumerate(spec.lhs_spec[2:]):
            pad, taps, outputs = (
                said["padding"][at][0], out.shape[spec.out_spec[2 + at]],
                self.flat.shapes[window][spec.rhs_spec[2 + at]],
            )  # fmt: skip
            # Padding of less than nothing cuts off what is ahead of the first tap.
            starts[axis] = -min(0, pad)
            step = taps, said["rhs_dilation"][at], said["window_strides"][at], outputs
            sides.append(side := forward_side(shape[axis] - starts[axis], max(0, pad), *step))
            ends[axis] = starts[axis] + side.used
        conv = forward(sides, channels * groups, out.shape[spec.out_spec[1]], groups * said["batch_group_count"])
        if conv is None:
            return None
        is_a_product = prod(conv["kernel"]) == 1 and not any(conv["padding"])
        # Groups of images would have to stand ahead of pixels.
        if is_a_product and groups > 1:
            return None
        if is_a_product:
            # Only pixels under the tap are factors.
            for axis, stride in zip(spec.lhs_spec[2:], said["rhs_dilation"], strict=True):
                steps[axis] = stride
        used = [len(range(*each)) for each in zip(starts, ends, steps, strict=True)]
        if used != [*shape]:
            maps = self._moved("slice", [maps], used, start_indices=starts, limit_indices=ends, strides=tuple(steps))
        more = {"dimension_numbers": spec, "batch_group_count": said["batch_group_count"]}
        return self.add("filter_gradient", [maps, window], out, conv=conv, is_a_product=is_a_product, **more)

    def _by_input(self, said: Mapping[str, Any], maps: str, turned: str, out: Any) -> str | None:
        """Add the gradient of a convolution by its input, whose filter is turned round; None where no convolution has
        it, or another one with many groups is faster.
        """
        spec, groups, spread = said["dimension_numbers"], said["feature_group_count"], said["lhs_dilation"]
        if prod(said["window_strides"]) * said["batch_group_count"] > 1 or (groups > 1 and prod(spread) == 1):
            return None
        shape, sizes, sides = self.flat.shapes[maps], [out.shape[axis] for axis in spec.out_spec[2:]], []
        given = [shape[axis] for axis in spec.lhs_spec[2:]]
        for at, (pad, _) in enumerate(said["padding"]):
            taps, dilation = self.flat.shapes[turned][spec.rhs_spec[2 + at]], said["rhs_dilation"][at]
            sides.append(forward_side(sizes[at], (taps - 1) * dilation - pad, taps, spread[at], dilation, given[at]))
        # Most of the input of pixels apart is under no tap, and its gradient zero: that needs no multiplication.
        apart = prod(spread) > 1 and all(side.taps == 1 and not any(side.ends) for side in sides)
        if apart:
            sides = [forward_side(size, 0, 1, 1, 1, size) for size in given]
        elif [side.size for side in sides] != sizes:
            # More of the input is under no tap than a convolution leaves behind.
            return None
        conv = forward(sides, out.shape[spec.out_spec[1]], shape[spec.lhs_spec[1]], groups)
        if conv is None:
            return None
        if not apart:
            return self.add("input_gradient", [maps, turned], out, conv=conv, dimension_numbers=spec)
        near, config = [*out.shape], [(0, 0, 0)] * len(out.shape)
        for axis, size, step in zip(spec.out_spec[2:], given, spread, strict=True):
            near[axis], config[axis] = size, (0, near[axis] - (size - 1) * step - 1, step - 1)
        aval = jax.ShapeDtypeStruct(tuple(near), out.dtype)
        touched = self.add("input_gradient", [maps, turned], aval, conv=conv, dimension_numbers=spec)
        zero = self._constant(jnp.zeros((), out.dtype))
        return self._moved("pad", [touched, zero], out.shape, padding_config=tuple(config))

    def _in_batches(self, said: Mapping[str, Any], maps: str, weights: str, out: Any) -> str:
        """Add a convolution; on the way back, where channels may stand in the place of images, of whole batches."""
        spec, shape, made = said["dimension_numbers"], [*self.flat.shapes[maps]], [*out.shape]
        images, results = spec.lhs_spec[0], spec.out_spec[0]
        alone = said["batch_group_count"] == 1 and _is_back(self._stack)
        missing = -shape[images] % max(1, self._batch) if alone else 0
        if not missing:
            return self.add("conv_general_dilated", [maps, weights], out, **said)
        more = [(0, missing if axis == images else 0, 0) for axis in range(len(shape))]
        shape[images] += missing
        made[results] += missing
        maps = self._moved("pad", [maps, self._constant(jnp.zeros((), out.dtype))], shape, padding_config=more)
        wide = self._moved("conv_general_dilated", [maps, weights], made, **said)
        starts = [0] * len(made)
        return self._moved("slice", [wide], out.shape, start_indices=starts, limit_indices=out.shape, strides=None)

    def _transposed(self, said: dict[str, Any], maps: str, weights: str, kernel: Sequence[int], out: Any) -> str:
        """Add a convolution of a map that is spread by zeros; where a transposed one cuts off as much at both ends and
        not as this one wants it, the rest is cut off behind it, or zeros are added.
        """
        spec, pads, shape = said["dimension_numbers"], [*said["padding"]], [*out.shape]
        more = [(0, 0, 0)] * len(shape)
        given = [self.flat.shapes[maps][axis] for axis in spec.lhs_spec[2:]]
        for at, axis in enumerate(spec.out_spec[2:]):
            spread, taps, dilation = said["lhs_dilation"][at], kernel[at], said["rhs_dilation"][at]
            if cut_off(shape[axis], given[at], spread, taps, dilation, pads[at]) is None:
                reach = (taps - 1) * dilation
                ends = [reach - pad for pad in pads[at]]
                least = max(0, min(ends))
                shape[axis] += sum(ends) - 2 * least
                more[axis], pads[at] = (least - ends[0], least - ends[1], 0), (reach - least,) * 2
        aval = jax.ShapeDtypeStruct(tuple(shape), out.dtype)
        wide = self._in_batches({**said, "padding": tuple(pads)}, maps, weights, aval)
        if not any(map(any, more)):
            return wide
        zero = self._constant(jnp.zeros((), out.dtype))
        return self._moved("pad", [wide, zero], out.shape, padding_config=tuple(more))

    def _place_by_place(
        self, said: Mapping[str, Any], maps: str, weights: str, kernel: Sequence[int], places: Sequence[int], out: Any
    ) -> str:
        """Add a product for each place of the window: of what is below it, and of the window."""
        spec = said["dimension_numbers"]
        maps, weights = self._turned(maps, spec.lhs_spec), self._turned(weights, spec.rhs_spec)
        images, channels, *sides = self.flat.shapes[maps]
        outputs = self.flat.shapes[weights][0]
        if any(map(any, said["padding"])):
            around = ((0, 0, 0), (0, 0, 0), *((before, after, 0) for before, after in said["padding"]))
            zero = self._constant(jnp.zeros((), self.flat.types[maps]))
            sides = [size + before + after for size, (before, after) in zip(sides, said["padding"], strict=True)]
            maps = self._moved("pad", [maps, zero], (images, channels, *sides), padding_config=around)
        multiply, rows = self._product(said, maps, weights, len(kernel))
        found: list[str] = []
        for place in product(*map(range, places)):
            starts = [at * stride for at, stride in zip(place, said["window_strides"], strict=True)]
            steps = [*zip(starts, said["rhs_dilation"], kernel, strict=True)]
            ends = [images, channels, *(start + step * (size - 1) + 1 for start, step, size in steps)]
            below = self._moved("slice", [maps], (images, channels, *kernel), start_indices=(0, 0, *starts),
                                limit_indices=ends, strides=(1, 1, *said["rhs_dilation"]))  # fmt: skip
            found.append(self._shaped(multiply(below), (rows, outputs, 1)))
        every = self._moved("concatenate", found, (rows, outputs, prod(places)), dimension=2)
        back = [spec.out_spec.index(axis) for axis in range(len(spec.out_spec))]
        return self._turned(self._shaped(every, (rows, outputs, *places)), back)

    def _product(self, said: Mapping[str, Any], maps: str, weights: str, axes: int) -> tuple[Callable[[str], str], int]:
        """Return what multiplies a part of the maps by the weights, images and outputs first in both, and how many
        images the result has.

        Groups are an axis that both factors share; those of images stand ahead of the images.
        """
        groups, batches = said["feature_group_count"], said["batch_group_count"]
        apart, (images, channels, *_), (outputs, inner, *kernel) = (
            groups * batches, self.flat.shapes[maps], self.flat.shapes[weights]
        )  # fmt: skip
        rows, cols = images // batches, outputs // apart
        mine: Sequence[int] = (batches, rows, channels) if batches > 1 else (images, groups, channels // groups)
        mine = mine if apart > 1 else (images, channels)
        shared: Sequence[int] = () if apart == 1 else (0,) if batches > 1 else (1,)
        other: Sequence[int] = (apart, cols, inner) if shared else (outputs, inner)
        window = self._shaped(weights, (*other, *kernel))
        along = tuple(tuple(range(len(each) - 1, len(each) + axes)) for each in (mine, other))

        def multiplied(part: str) -> str:
            made = self._moved("dot_general", [self._shaped(part, (*mine, *kernel)), window],
                               (*other[: len(shared)], rows, cols),
                               dimension_numbers=(along, (shared, (0,) * len(shared))))  # fmt: skip
            return self._turned(made, (1, 0, 2)) if shared else made

        return multiplied, rows

    def _turned(self, name: str, order: Sequence[int]) -> str:
        if [*order] == sorted(order):
            return name
        shape = [self.flat.shapes[name][axis] for axis in order]
        return self._moved("transpose", [name], shape, permutation=tuple(order))

    def _shaped(self, name: str, shape: Sequence[int]) -> str:
        if tuple(shape) == self.flat.shapes[name]:
            return name
        return self._moved("reshape", [name], shape, new_sizes=tuple(shape))


BACK = "grad."
"""The beginning of the names of nodes on the way back."""


def _is_back(stack: str) -> bool:
    """Return whether a primitive is on the way back, by the scopes around it."""
    return "transpose(" in stack


def _is_turned(window: str) -> bool:
    """Return whether a window is a filter turned round, as JAX has it in the gradient by the input; in that by the
    filter it is a gradient.
    """
    return window.startswith("rev:")


def _is_a_map(said: Mapping[str, Any], kernel: Sequence[int], places: Sequence[int]) -> bool:
    """Return whether a window stays over the middle of its map: it is no kernel, but another map."""
    steps = zip(places, said["window_strides"], said["rhs_dilation"], kernel, strict=True)
    stays = all((place - 1) * step <= dilation * (taps - 1) for place, step, dilation, taps in steps)
    return stays and prod(places) < prod(kernel)


def _is_gradient(stack: str) -> bool:
    """Return whether a primitive on the way back is none of those that are computed again there."""
    return stack.rfind("transpose(") > stack.rfind("rematted_computation")


def _label(stack: str) -> str:
    """Return the scopes that a user named around a primitive, and whether it is on the way back."""
    scopes = [found[1] for part in stack.split("/") if (found := _SCOPE.fullmatch(part)) and found[1]]
    return (BACK if _is_back(stack) else "") + "".join(f"{each}." for each in dict.fromkeys(scopes))


def _narrow(shape: ValueShape, wide: ValueShape, places: Sequence[int]) -> ValueShape:
    """Return the shape with an axis for each of the wider one, of one element where it has none."""
    own = dict(zip(map(int, places), shape, strict=True))
    return tuple(own.get(axis, 1) for axis in range(len(wide)))
