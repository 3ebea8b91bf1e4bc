"""Blocks of registers that lie side by side: in a compiled loop, one instruction moves or multiplies each.

The compiler by itself makes such instructions of long loops alone. Rows of registers are short, and mostly something
changes somewhere in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.base.imports import numba_if_there

F = TypeVar("F", bound=Callable[..., None])
Numbers = NDArray[np.floating[Any]]

BLOCK = 8
"""Registers of a block."""


class _Code:
    """Code for one block of some arrays."""

    def __init__(self, context: Any, builder: Any, kinds: Sequence[Any], values: Sequence[Any], begin: Any) -> None:
        """`begin` is the first register of the block in every array."""
        self.ir, arrays = import_module("llvmlite.ir"), import_module("numba.np.arrayobj")
        self.builder, self._places = builder, list[tuple[Any, int]]()
        for kind, value in zip(kinds, values, strict=True):
            first = builder.gep(arrays.make_array(kind)(context, builder, value).data, [begin])
            block = self.ir.VectorType(context.get_data_type(kind.dtype), BLOCK)
            self._places.append((builder.bitcast(first, block.as_pointer()), kind.dtype.bitwidth // 8))

    def load(self, array: int) -> Any:
        """The registers of an array, by its number."""
        place, size = self._places[array]
        return self.builder.load(place, align=size)

    def store(self, values: Any, array: int) -> None:
        """Give an array, by its number, these values."""
        place, size = self._places[array]
        self.builder.store(values, place, align=size)

    def fetch(self, array: int) -> None:
        """Let the computer bring the registers of an array, by its number, near, and go on meanwhile."""
        number, place = self.ir.IntType(32), self.ir.IntType(8).as_pointer()
        kind = self.ir.FunctionType(self.ir.VoidType(), [place, number, number, number])
        prefetch = self.builder.module.declare_intrinsic("llvm.prefetch", [place], kind)
        # To be read, to be kept in every cache, and as data.
        how = [self.ir.Constant(number, each) for each in (0, 3, 1)]
        self.builder.call(prefetch, [self.builder.bitcast(self._places[array][0], place), *how])

    def chosen(self, count: Any, first: Any, others: Any) -> Any:
        """`count` values of the first, and the others behind them."""
        number = self.ir.IntType(32)
        numbers = self.ir.VectorType(number, BLOCK)
        nothing = self.ir.Constant(numbers, self.ir.Undefined)
        one = self.builder.insert_element(nothing, self.builder.trunc(count, number), self.ir.Constant(number, 0))
        every = self.builder.shuffle_vector(one, nothing, self.ir.Constant(numbers, [0] * BLOCK))
        place = self.ir.Constant(numbers, [*range(BLOCK)])
        return self.builder.select(self.builder.icmp_signed("<", place, every), first, others)


def _instructions(arrays: int, emit: Callable[..., None]) -> Callable[[F], F]:
    """Put code for a block in the place of a function, in compiled loops.

    Args:
        arrays: the function's arrays; behind them it has the first register of the block in each, then other numbers.
        emit: called with these numbers; emits the code.
    """

    def replaced(function: F) -> F:
        numba = numba_if_there()
        if numba is None or numba.config.DISABLE_JIT:
            return function

        def typed(_: Any, *kinds: Any) -> tuple[Any, Callable[..., Any]]:
            assert all(each.ndim == 1 and each.layout == "C" for each in kinds[:arrays]), "they lie side by side"

            def code(context: Any, builder: Any, called: Any, given: Sequence[Any]) -> Any:
                own = _Code(context, builder, called.args[:arrays], given[:arrays], given[arrays])
                emit(own, *given[arrays + 1 :])
                return context.get_dummy_value()

            places = [numba.types.intp] * (len(kinds) - arrays)
            return numba.types.none(*kinds[:arrays], *places), code

        own = signature(function)
        named: Any = typed
        # The compiler wants arguments that have names.
        named.__signature__ = own.replace(
            parameters=[Parameter("_", Parameter.POSITIONAL_OR_KEYWORD), *own.parameters.values()]
        )
        found: F = import_module("numba.extending").intrinsic(named)
        return found

    return replaced


@_instructions(2, lambda code: code.store(code.load(1), 0))
def move(to: NDArray[Any], of: NDArray[Any], begin: int) -> None:
    """Copy a block, from register `begin` on."""
    to[begin : begin + BLOCK] = of[begin : begin + BLOCK]


@_instructions(1, lambda code: code.fetch(0))
def fetch(of: NDArray[Any], begin: int) -> None:
    """Begin to bring a block near, from register `begin` on, that is read soon."""


def _multiplied(code: _Code) -> None:
    product = code.builder.fmul(code.load(1), code.load(2))
    code.store(code.builder.fadd(code.load(0), product), 0)


@_instructions(3, _multiplied)
def multiply(sums: Numbers, factors: Numbers, weights: Numbers, begin: int) -> None:
    """Add the products of a block, from register `begin` on."""
    block = slice(begin, begin + BLOCK)
    sums[block] += factors[block] * weights[block]


def _multiplied_by_two(code: _Code, count: Any) -> None:
    product = code.builder.fmul(code.load(1), code.chosen(count, code.load(2), code.load(3)))
    code.store(code.builder.fadd(code.load(0), product), 0)


@_instructions(4, _multiplied_by_two)
def multiply_by_two(sums: Numbers, factors: Numbers, weights: Numbers, others: Numbers, begin: int, count: int) -> None:
    """Add the products of a block, from register `begin` on: the first `count` with weights, all behind with others."""
    block, at = slice(begin, begin + BLOCK), np.arange(BLOCK) < count
    sums[block] += factors[block] * np.where(at, weights[block], others[block])
