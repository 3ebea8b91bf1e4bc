"""Ctrl-C is known by what it was, whatever Python made of it."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from pydantic import InstanceOf

from tpusim.base.interruption import interrupted
from tpusim.input.form import validated


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


def test_ctrl_c_and_what_came_of_it() -> None:
    wrapped = raised(RuntimeError("Error calling __set_name__"), KeyboardInterrupt())
    assert interrupted(KeyboardInterrupt())
    assert interrupted(wrapped)
    assert interrupted(raised(ImportError(), wrapped))


def test_other_errors_are_not() -> None:
    assert not interrupted(RuntimeError())
    assert not interrupted(raised(RuntimeError(), ValueError()))


class Meddling(type):
    """Classes that somebody presses Ctrl-C for as soon as `isinstance` is asked about one."""

    def __instancecheck__(cls, _: object) -> bool:
        signal.raise_signal(signal.SIGINT)
        return False


class Slow(metaclass=Meddling):
    pass


@validated
class Holding:
    slow: InstanceOf[Slow]


def test_ctrl_c_while_a_class_is_analysed_is_no_fault_of_the_class() -> None:
    """Pydantic would say that the class cannot be asked for its instances."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    holding: Any = Holding
    try:
        with pytest.raises(KeyboardInterrupt):
            holding(None)
    finally:
        signal.signal(signal.SIGINT, before)
