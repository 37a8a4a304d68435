# SPDX-License-Identifier: Apache-2.0
"""From a text of the kernel language, with sizes, to functions at tensor level."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.functions import NAME
from penstock.dialects.graph.kernel import KernelOp
from penstock.dialects.locations import inherit_locations
from penstock.lowering.from_kernel import read_source
from penstock.lowering.from_kernel.expressions import Expressions
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import NAMED
from penstock.lowering.from_kernel.reducer_laws import require_laws
from penstock.lowering.from_kernel.reductions import PLACES, REDUCTIONS
from penstock.lowering.from_kernel.scalars import SCALAR_NAMES, element_called
from penstock.lowering.from_kernel.sizes import bind_numbers, open_sizes, sizes_from_shapes
from penstock.lowering.from_kernel.statements import Statements
from penstock.lowering.from_kernel.symbols import Symbols
from penstock.lowering.from_kernel.syntax import (
    Call,
    Declarator,
    Definition,
    Function,
    Kernel,
    Position,
    Reducer,
    walk,
)
from penstock.lowering.from_text import SourceText, read_text
from penstock.passes.shapes import signless, tensor_type
from penstock.passes.tensor.tensor_builder import TensorBuilder

BUILT_IN = {*SCALAR_NAMES, *REDUCTIONS, *PLACES, *NAMED, "dot", "load", "store"}
"""Names that mean something in every text."""
_MAIN = "main"
"""What calls a kernel that is compiled by itself."""


class HasShape(Protocol):
    """An array, of which only the shape is asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...


class KernelFile:
    """The definitions of a text, which do not contradict each other."""

    def __init__(self, text: SourceText):
        """Parse a text. Raises UserError at the token that is wrong."""
        self.text = text
        definitions = read_source(text).definitions
        self.kernels = {each.name: each for each in definitions if isinstance(each, Kernel)}
        self.functions = {each.name: each for each in definitions if isinstance(each, Function)}
        self.reducers = {each.name: each for each in definitions if isinstance(each, Reducer)}
        with self._places():
            self._check(definitions)

    def kernel(self, name: str | None = None) -> Kernel:
        """A kernel by its name, or the only one. Raises UserError."""
        if name is not None and name in self.kernels:
            return self.kernels[name]
        if name is not None:
            note = nearest_or_all(name, self.kernels, "kernels")
            raise UserError(f'there is no kernel "{name}"', loc=self.text.name, notes=[note])
        if len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if not self.kernels:
            raise UserError("there is no kernel in this text", loc=self.text.name)
        names = ", ".join(self.kernels)
        raise UserError("there are several kernels in this text", loc=self.text.name, notes=[f"say which: {names}"])

    def sizes_from_arguments(
        self,
        kernel: Kernel,
        ordered: Sequence[HasShape],
        named: Mapping[str, HasShape],
        given: Mapping[str, int],
    ) -> dict[str, int]:
        """
        The sizes that the shapes of arguments say, in order and by name, beside those that are given.

        Raises UserError for shapes that do not fit each other; arguments that are missing say nothing.
        """
        shapes = dict(zip((each.name for each in kernel.parameters), (each.shape for each in ordered), strict=False))
        shapes |= {name: each.shape for name, each in named.items()}
        with self._places():
            return sizes_from_shapes(kernel, shapes, given)

    def function(self, kernel: Kernel, sizes: Mapping[str, int]) -> FuncOp:
        """
        The private function that a kernel is with sizes for its dims and its constants.

        Raises UserError, at the token, for what is wrong with the kernel or with the sizes.
        """
        with self._places():
            return self._function(kernel, sizes)

    @staticmethod
    def types(kernel: Kernel, function: FuncOp) -> tuple[list[Attribute], list[Attribute]]:
        """The types of operands and results of a kernel at graph level, where integers have a sign."""
        inputs = _types(kernel.parameters, function.function_type.inputs)
        return inputs, _types(kernel.results, function.function_type.outputs)

    def place(self, at: Position) -> str:
        """`file:line:column` of a place in the text."""
        return f"{self.text.name}:{self.text.first_line - 1 + at.line}:{at.column}"

    def module(self, kernel: Kernel, sizes: Mapping[str, int]) -> ModuleOp:
        """
        A program at graph level: @main is the kernel on its arguments, which have the names of the kernel's parameters.
        """
        function = self.function(kernel, sizes)
        inputs, outputs = self.types(kernel, function)
        block = Block(arg_types=inputs)
        for argument, parameter in zip(block.args, kernel.parameters, strict=True):
            argument.name_hint = parameter.name
        call = KernelOp(kernel.name, block.args, outputs)
        for value, result in zip(call.outputs, kernel.results, strict=True):
            value.name_hint = result.name
        last = ReturnOp(*call.outputs)
        block.add_ops([call, last])
        main = FuncOp(
            _MAIN,
            (inputs, outputs),
            Region(block),
            arg_attrs=_names([each.name for each in kernel.parameters]),
            res_attrs=_names([each.name for each in kernel.results]),
        )
        main.location = function.location
        for argument, own in zip(block.args, function.body.block.args, strict=True):
            argument.location = own.location
        module = ModuleOp([main, function])
        module.location = function.location
        inherit_locations(module)
        return module

    def _function(self, kernel: Kernel, sizes: Mapping[str, int]) -> FuncOp:
        numbers = bind_numbers(kernel, sizes)
        if missing := list(open_sizes(kernel, numbers)):
            plural = "s are" if len(missing) > 1 else " is"
            words = ", ".join(f'"{name}"' for name in missing)
            notes = ["bind it: " + " ".join(f"--dim {name}=SIZE" for name in missing)]
            raise Fault(f'the size{plural} not known: {words} of the kernel "{kernel.name}"', kernel, notes)
        builder = TensorBuilder()
        symbols = Symbols(self.functions, self.reducers, numbers)
        expressions = Expressions(builder, symbols, self.text.name, self.text.first_line)
        statements = Statements(expressions)
        for name in numbers:
            if name in BUILT_IN or name in self.functions or name in self.reducers:
                raise Fault(f'"{name}" is a name of the language, or a definition, and cannot be a size', kernel)
        for parameter in kernel.parameters:
            tensor = statements.declare(parameter, "parameter")
            type = tensor_type(tensor.shape, signless(tensor.element))
            location = expressions.location(parameter.at)
            tensor.value = builder.block.insert_arg(type, len(builder.block.args), location)
            builder.names[tensor.value] = parameter.name
        results = [statements.declare(result, "result") for result in kernel.results]
        statements.run(kernel.body)
        types: list[Attribute] = []
        for tensor in results:
            if tensor.value is None:
                raise Fault(f'nothing is stored to the result "{tensor.name}"', tensor.declared)
            if tensor.missing is not None:
                message = f'not all of the result "{tensor.name}" is stored'
                raise Fault(message, tensor.declared, [tensor.missing])
            types.append(tensor.value.type)
        builder.block.add_op(ReturnOp(*(tensor.value for tensor in results if tensor.value is not None)))
        function = FuncOp(kernel.name, (builder.block.arg_types, types), Region(builder.block), "private")
        function.location = expressions.location(kernel.at)
        inherit_locations(function)
        for value, name in builder.names.items():
            value.name_hint = name
        return function

    def _check(self, definitions: Sequence[Definition]) -> None:
        known: set[str] = set()
        for each in definitions:
            if each.name in known:
                raise Fault(f'"{each.name}" is defined already', each, ["a name is bound once: choose another one"])
            if each.name == _MAIN if isinstance(each, Kernel) else each.name in BUILT_IN:
                raise Fault(f'"{each.name}" is a name of the language', each, ["choose another one"])
            known.add(each.name)
        finished: set[str] = set()
        for function in self.functions.values():
            self._require_ending(function, [], finished)
        for definition in definitions:
            self._require_calls(definition)
        for reducer in self.reducers.values():
            require_laws(reducer, self.functions)

    def _require_ending(self, function: Function, within: list[str], finished: set[str]) -> None:
        """Raise Fault if a function calls itself, perhaps by another one."""
        if function.name in finished:
            return
        for call in walk(function.value):
            if isinstance(call, Call) and (called := self.functions.get(call.function)) is not None:
                if called.name in (*within, function.name):
                    raise Fault(f'"{called.name}" calls itself', call, ["functions are written into their callers"])
                self._require_ending(called, [*within, function.name], finished)
        finished.add(function.name)

    def _require_calls(self, definition: Definition) -> None:
        """Raise Fault if a definition calls itself, or a kernel."""
        for call in walk(definition):
            if isinstance(call, Call) and call.function == definition.name:
                raise Fault(f'"{call.function}" calls itself', call, ["what is repeated is a loop, or a recurrence"])
            if isinstance(call, Call) and call.function in self.kernels:
                raise Fault(f'"{call.function}" is a kernel, which a graph calls', call, ["a function has a value"])

    @contextmanager
    def _places(self) -> Generator[None]:
        """Faults of the text as UserErrors with their places."""
        try:
            yield
        except Fault as fault:
            raise UserError(fault.message, loc=self.place(fault.at), notes=fault.notes) from None


def kernel_file(source: str | Path) -> KernelFile:
    """The definitions of a `.pk` file, by its path, or of a text. Raises UserError for what is wrong with it."""
    is_path = isinstance(source, Path) or ("\n" not in source and source.endswith(".pk"))
    return KernelFile(read_text(source) if is_path else SourceText("<kernel>", str(source)))


def _types(declared: Sequence[Declarator], stored: Iterable[Attribute]) -> list[Attribute]:
    """The types of arguments or results at graph level, where integers have a sign."""
    types: list[Attribute] = []
    for each, type in zip(declared, stored, strict=True):
        element = element_called(each.element)
        assert element is not None
        assert isa(type, TensorType)
        types.append(TensorType(element, type.get_shape()))
    return types


def _names(names: Sequence[str]) -> ArrayAttr[DictionaryAttr]:
    return ArrayAttr(DictionaryAttr({NAME: StringAttr(name)}) for name in names)
