"""Ctrl-C is known by what it was, whatever Python made of it."""

from __future__ import annotations

import pytest

from tpusim.base.interruption import interrupted


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
