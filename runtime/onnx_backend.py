# SPDX-License-Identifier: Apache-2.0
"""
Penstock as a backend of ONNX, behind the interface that ONNX's own test suite drives.

`prepare`, `run_model` and `run_node` are functions of this module, as that interface wants them:

    from onnx.backend.test import BackendTest
    from penstock.runtime import onnx_backend

    globals().update(BackendTest(onnx_backend, __name__).test_cases)

The device "CPU" is the host. Keyword arguments choose what runs there: `backend` is "native", which compiles to C, or
"interpreter"; `machine` the accelerator to compile for; `level` how far down. At graph level a model runs as it is
imported, before any pass, and so in the interpreter only.

Inputs of which shapes, axes, pads and the like are computed, and sizes of symbolic dimensions, are known when a model
is run: it is compiled then, once for each set of them. See
https://onnx.ai/onnx/repo-docs/ImplementingAnOnnxBackend.html.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from onnx import IR_VERSION, ModelProto, NodeProto, TypeProto, defs, helper
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep, namedtupledict

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, nearest_or_all
from penstock.lowering.from_onnx.model import check_model
from penstock.lowering.from_onnx.upgrade import upgraded
from penstock.runtime.compiler import import_program
from penstock.runtime.engine import Backend, Engine, compile_program
from penstock.runtime.engine_cache import EngineCache
from penstock.runtime.signature import signature_of
from penstock.runtime.specialize import FittedInputs, Specialiser
from penstock.runtime.tensor_specs import lines_of_run

Array = NDArray[Any]
Outputs: TypeAlias = tuple[Any, ...]

DEVICES = ("CPU",)

KEPT_ENGINES = 8
"""How many specialisations of a model are kept: the one that was not used for longest goes."""


@dataclass(frozen=True)
class Target:
    """What a model is to run on."""

    backend: Backend = "native"
    machine: str | None = None
    level: str | None = None
    """The level to stop at; by default the lowest."""
    allow_nan: bool = False
    """Whether weights may hold NaN."""
    max_trips: int | None = None
    """The most lines of an output of which a run decides how many there are, as in `import_model`."""

    def __post_init__(self) -> None:
        if self.level == "graph" and (self.backend != "interpreter" or self.machine is not None):
            raise UserError("at graph level a model runs in the interpreter only, and for no machine")

    def engine(self, model: ModelProto, dims: Mapping[str, int], name: str) -> Engine:
        """The model, imported and ready to run."""
        program = import_program(model, dims, name=name, allow_nan=self.allow_nan, max_trips=self.max_trips)
        if self.level == "graph":
            return Engine(program.module, program.ctx, signature_of(program.module), self.backend)
        return compile_program(program, machine=self.machine, until=self.level, backend=self.backend)


class PreparedModel(BackendRep):
    """A model that is ready to run, or will be when its inputs say what it still has to know."""

    def __init__(self, model: ModelProto, target: Target, name: str):
        self.target = target
        self.name = name
        self.outputs = [value.name for value in model.graph.output]
        self._specialiser = Specialiser(model)
        self._engines = EngineCache[Hashable, Engine](KEPT_ENGINES)
        if self._specialiser.is_static:
            self._engine(self._specialiser.fit([], {}, {}))

    def run(self, inputs: Any, **kwargs: Any) -> Outputs:
        """
        Run once. `inputs` are arrays in order, or by name in a mapping; the outputs are a tuple that takes names too.

        Raises UserError for inputs that do not fit, and with status 3 for what is not supported.
        """
        ordered: list[Array] = []
        named: dict[str, Array] = {}
        if isinstance(inputs, Mapping):
            named = {name: self._array(value) for name, value in cast(Mapping[str, Any], inputs).items()}
        elif isinstance(inputs, np.ndarray):
            # One array alone is the one input.
            ordered = [cast(Array, inputs)]
        else:
            ordered = [self._array(value) for value in cast(Sequence[Any], inputs)]
        fitted = self._specialiser.fit(ordered, named, {})
        engine = self._engine(fitted)
        results = lines_of_run(engine.signature, engine.run(fitted.ordered, fitted.named))
        given = dict(zip((each.name for each in engine.signature.outputs), results, strict=True))
        results = [given[name] for name in self.outputs]
        return namedtupledict("Outputs", self.outputs)(*results)

    def _array(self, value: object) -> Array:
        """An input as an array; raises UserError for a sequence, an optional or a map."""
        if isinstance(value, np.ndarray | np.generic | int | float):
            return np.asarray(cast(Any, value))
        # What takes it is not supported, which is what the import says.
        import_program(self._specialiser.model, {}, name=self.name)
        raise UserError(f"an input is no array but a {type(value).__name__}", loc=self.name, status=UNSUPPORTED)

    def _engine(self, fitted: FittedInputs) -> Engine:
        key = (
            tuple(sorted(fitted.dims.items())),
            tuple((name, each.dtype.str, each.shape, each.tobytes()) for name, each in fitted.constants.items()),
        )

        def make() -> Engine:
            return self.target.engine(self._specialiser.with_constants(fitted.constants), fitted.dims, self.name)

        return self._engines.get(key, make)


class PenstockBackend(OnnxBackend):
    """The backend; a subclass with another `target` runs the same elsewhere."""

    target: ClassVar[Target] = Target()

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is a device of that name: "CPU", with or without a number after it."""
        return device.partition(":")[0] in DEVICES

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """
        Whether the model can be prepared. If it has to know values of its inputs first, it may still turn out, when
        it is run, that they ask for what is not supported.
        """
        try:
            cls.prepare(model, device, **kwargs)
        except UserError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """
        The model, ready to run. `kwargs` are the fields of `Target`; `rtol` and `atol`, with which ONNX's runner calls
        every backend, mean nothing here. A model of an operator set before 7 is brought up to date.

        Raises UserError for what is wrong with the model, with status 3 for what is not supported, and for a device
        that is not there; TypeError for an argument that has no meaning.
        """
        if not cls.supports_device(device):
            raise UserError(f'there is no device "{device}"', notes=[nearest_or_all(device, DEVICES, "devices")])
        wanted = {name: value for name, value in kwargs.items() if name not in ("rtol", "atol")}
        target = Target(**(vars(cls.target) | wanted))
        name = model.graph.name or "<model>"
        check_model(model, name)
        return PreparedModel(upgraded(model, name), target, name)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> Outputs:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> Outputs:
        """
        Run one node on arrays, given for its inputs that have a name, in order. `opset_version` is the operator set
        that gives it its meaning, by default the newest. `outputs_info` is not needed: shapes are inferred.
        """
        version = int(kwargs.pop("opset_version", defs.onnx_opset_version()))
        arrays = [np.asarray(each) for each in inputs]
        names = list(dict.fromkeys(name for name in node.input if name))
        graph = helper.make_graph(
            [node],
            node.name or node.op_type,
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in zip(names, arrays, strict=False)
            ],
            [helper.make_value_info(name, TypeProto()) for name in node.output if name],
        )
        imports = [helper.make_opsetid("", version)]
        if node.domain:
            imports.append(helper.make_opsetid(node.domain, 1))
        model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        return cls.run_model(model, arrays, device, **kwargs)


supports_device = PenstockBackend.supports_device
is_compatible = PenstockBackend.is_compatible
prepare = PenstockBackend.prepare
run_model = PenstockBackend.run_model
run_node = PenstockBackend.run_node
