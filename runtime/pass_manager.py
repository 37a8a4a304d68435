# SPDX-License-Identifier: Apache-2.0
"""Running passes: a pipeline read from text, verification around every pass, observers, and faults with names."""

from __future__ import annotations

import dataclasses
import gc
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.arg_spec import ArgSpec, ParameterType, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, VerifyException

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError, did_you_mean, nearest_or_all
from penstock.dialects.locations import inherit_locations
from penstock.dialects.plugins import factories
from penstock.dialects.verification import find_invalid
from penstock.dialects.verifier import Verifier
from penstock.lowering.from_text import ParsedText, place_in
from penstock.runtime.instrumentation import Instrumentation, phase
from penstock.runtime.levels import mismatched_level
from penstock.runtime.nested_pipelines import ANCHORS, MODULE, NestedPipeline, alone
from penstock.runtime.pass_options import options_of, unfit

PIPELINE_NAME = "pass-pipeline"
"""The file name under which places in a pipeline's text are reported."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})
_STRING = r'"(?:\\.|[^"\\])*"'
_TOKEN = re.compile(rf"{_STRING}|[()\[\]{{}},]|[^()\[\]{{}},\"]+|\"")
_NESTED = re.compile(r"(?P<anchor>[A-Za-z_][\w.]*)\s*\((?P<inner>.*)\)", re.DOTALL)
"""Passes that are nested in an operation."""


class PassFault(Exception):
    """A pass that crashed, or that left IR which does not verify: a fault of the pass and not of its input."""

    def __init__(self, pipeline: Sequence[ModulePass], message: str):
        super().__init__(message)
        self.pipeline = tuple(pipeline)
        """The passes up to and with the faulty one: running them on the same input repeats the fault."""


class Observer(Protocol):
    """
    Called before and after every pass of a pipeline; the IR has been verified when `after` is called. Of several, the
    first is nearest to the pass: called last before it, and first after it. An `Instrumentation` is told more.
    """

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None: ...

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None: ...


PipelineUntil = Callable[[ModulePass], tuple[ModulePass, ...]]
"""The pipeline up to its last pass, which is given."""
Progress = Callable[[int, int, ModulePass], None]
"""Called before each pass with its number from 0, the number of passes, and the pass."""


AvailablePasses = dict[str, Callable[[], type[ModulePass]]]


def available_passes() -> AvailablePasses:
    """All passes by name: ours, xDSL's and those of installed plug-ins, each imported when called for."""
    return dict(sorted(factories("all_passes").items()))


@dataclass(frozen=True)
class PipelineItem:
    """What stands between two commas of a pipeline, and the line and column that it begins in, from 1."""

    text: str
    line: int = 1
    column: int = 1

    @property
    def place(self) -> str:
        return f"{PIPELINE_NAME}:{self.line}:{self.column}"

    def part(self, text: str, at: int) -> PipelineItem:
        """A text that stands in this one, or in place of a part of it, from the letter `at`."""
        before = self.text[:at]
        if (lines := before.count("\n")) == 0:
            return PipelineItem(text, self.line, self.column + at)
        return PipelineItem(text, self.line + lines, at - before.rindex("\n"))


def split_pipeline(text: str) -> list[PipelineItem]:
    """
    The items of a pipeline, without the blanks around them; MLIR's `builtin.module(...)` around it is dropped.

    An empty text has none, and a comma may follow the last.
    """
    whole = PipelineItem(text)
    items = _split(whole)
    if len(items) == 1 and (found := _NESTED.fullmatch(items[0].text)) is not None and found["anchor"] == MODULE:
        return _split(items[0].part(found["inner"], found.start("inner")))
    return items


def _split(whole: PipelineItem) -> list[PipelineItem]:
    """What stands between commas, of which those in quotes, options, and nested pipelines are not counted."""
    starts, depth = [0], 0
    for token in _TOKEN.finditer(whole.text):
        match token[0]:
            case "(" | "[" | "{":
                depth += 1
            case ")" | "]" | "}":
                depth -= 1
            case "," if depth <= 0:
                starts.append(token.end())
            case _:
                pass
    ends = [*(start - 1 for start in starts[1:]), len(whole.text)]
    items: list[PipelineItem] = []
    for start, end in zip(starts, ends, strict=True):
        text = whole.text[start:end]
        items.append(whole.part(text.strip(), start + len(text) - len(text.lstrip())))
    return items if items[-1].text else items[:-1]


Pipelines = Mapping[str, Callable[[ArgSpec, str], str]]
"""Name of a pipeline -> what makes its text of the options that are given, at a place."""


def read_pipeline(text: str, named: Callable[[], Pipelines] = dict) -> tuple[ModulePass, ...]:
    """
    The passes of `pass{option=1 other=2,3}, func.func(pass2, pass3)`; MLIR's `builtin.module(...)` around it is
    dropped, and the name of a pipeline stands for its passes; `named` is called for what is no pass.

    Raises UserError, placed in the text, for an unknown pass or option and for a value of the wrong type.
    """
    available = available_passes()
    return tuple(each for item in split_pipeline(text) for each in read_item(available, item, named))


def read_item(
    available: AvailablePasses, item: PipelineItem, named: Callable[[], Pipelines] = dict
) -> Sequence[ModulePass]:
    """The passes that an item of a pipeline stands for; raises UserError as `read_pipeline` does."""
    if (found := _NESTED.fullmatch(item.text)) is not None:
        if (anchor := found["anchor"]) not in ANCHORS:
            note = nearest_or_all(anchor, ANCHORS, "passes run in")
            raise UserError(f'no passes can be nested in "{anchor}"', loc=item.place, notes=[note])
        inner = _split(item.part(found["inner"], found.start("inner")))
        passes = tuple(module_pass for each in inner for module_pass in read_item(available, each, named))
        if anchor == "func.func" and any(isinstance(each, NestedPipeline) for each in passes):
            raise UserError("nothing can be nested in a function", loc=item.place)
        return [NestedPipeline(anchor, passes)]
    spec = read_spec(item)
    if spec.name not in available:
        pipelines = named()
        if spec.name in pipelines:
            return read_pipeline(pipelines[spec.name](spec, item.place))
        if near := did_you_mean(spec.name, [*available, *pipelines]):
            raise UserError(f'there is no pass "{spec.name}"', loc=item.place, notes=[near])
    return [make_pass(available, spec, item.place)]


def read_spec(item: PipelineItem) -> ArgSpec:
    """The name and the options of the pass that an item is; raises UserError, placed in the text, for what is none."""
    if not item.text:
        raise UserError("Expected pass name here", loc=item.place)
    try:
        (spec,) = parse_pipeline(item.text)
    except ArgSpecParseError as error:
        # The message is: a title, file:line:col, the line, the caret, the reason.
        lines = str(error).rstrip("\n").split("\n")
        line, column = (int(number) for number in lines[1].split(":")[-2:])
        at = sum(len(each) + 1 for each in item.text.split("\n")[: line - 1]) + column - 1
        notes = ['a value with other characters stands in quotes: option="out/graph.dot"']
        reason = lines[-1].strip()
        raise UserError(reason, loc=item.part("", at).place, notes=notes if reason == "Unknown token" else ()) from None
    return spec


def load_pass(name: str, place: str | None = None) -> type[ModulePass]:
    """The class of the pass `name`; raises UserError, with the nearest name, if there is none."""
    return _load(available_passes(), name, place)


def pipeline_text(passes: Sequence[ModulePass]) -> str:
    """The text, of one line, that `read_pipeline` reads back as the same passes."""
    return ",".join(
        f"{each.anchor}({pipeline_text(each.passes)})"
        if isinstance(each, NestedPipeline)
        else _spec_text(each.pipeline_pass_spec())
        for each in passes
    )


def _spec_text(spec: ArgSpec) -> str:
    # xDSL's own text has no escapes, and exponents that it reads as words.
    options = " ".join(
        f"{name}={','.join(map(_value_text, values))}" if values else name for name, values in spec.parameters.items()
    )
    return f"{spec.name}{{{options}}}" if options else spec.name


def _value_text(value: ParameterType) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    text = str(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def verify(module: ModuleOp, parsed: ParsedText | None = None, verifier: Verifier | None = None) -> None:
    """
    Verify a module by xDSL's rules and ours; the UserError that it raises names the offending operation's location, and
    has others for further functions that are not valid.

    A `verifier` that has seen a module like it is quicker than a new one.
    """
    if (found := find_invalid(module, verifier or Verifier())) is None:
        return
    isolated = [op for op in module.ops if op.has_trait(IsolatedFromAbove)]
    each = [fault for op in isolated if (fault := find_invalid(op)) is not None]
    if all(op is not found[0] for op, _, _ in each):
        each.insert(0, found)
    faults = [UserError(message, loc=place_in(parsed, op), notes=notes) for op, message, notes in each]
    first = faults[0]
    raise UserError(first.message, loc=first.loc, notes=first.notes, others=faults[1:])


def run_passes(
    ctx: Context,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    *,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
    verify_first: bool | None = None,
    verify_each: bool = True,
    remark_levels: bool = False,
    parsed: ParsedText | None = None,
) -> None:
    """
    Run `passes` on `module`, which is verified before the first and after each of them; `verify_first` says otherwise
    of the first.

    With `remark_levels`, for pipelines that a person wrote, a pass that finds nothing of its level is remarked on
    stderr, and one that changes the program all the same is refused: it took it for what it is not.

    Raises UserError for what is the fault of the input, PassFault for a pass that crashes or breaks the IR.
    """
    verifier = None
    if isinstance(ctx, PenstockContext):
        # What is handed on is kept no longer than it is of use: it holds the module as it was.
        verifier, ctx.verifier = ctx.verifier, None
    instruments = [each for each in observers if isinstance(each, Instrumentation)]
    run = _Run(ctx, verifier or Verifier(), observers, instruments, verify_each, remark_levels)
    with fewer_collections():
        if verify_each if verify_first is None else verify_first:
            with phase("verify", instruments):
                verify(module, parsed, run.verifier)
        for index, module_pass in enumerate(passes):
            if progress is not None:
                progress(index, len(passes), module_pass)
            run.step(module, module_pass, passes[:index])


@dataclass
class _Run:
    """What stays the same from pass to pass."""

    ctx: Context
    verifier: Verifier
    observers: Sequence[Observer]
    instruments: Sequence[Instrumentation]
    verify_each: bool
    remark_levels: bool

    def step(self, module: ModuleOp, module_pass: ModulePass, done: Sequence[ModulePass]) -> None:
        """Run the next pass of the pipeline."""
        for observer in reversed(self.observers):
            observer.before(module_pass, module)
        self._one(module, module, module_pass, lambda last: (*done, last), self.verifier)
        for observer in self.observers:
            observer.after(module_pass, module)

    def _one(
        self, op: ModuleOp | FuncOp, module: ModuleOp, module_pass: ModulePass, until: PipelineUntil, verifier: Verifier
    ) -> None:
        """Run a pass on `op`, which is `module` or in it, and verify that."""
        try:
            with alone(module, op, module_pass) if isinstance(op, FuncOp) else nullcontext(op) as target:
                if isinstance(module_pass, NestedPipeline):
                    self._nested(target, module_pass, until)
                else:
                    _apply(self.ctx, target, module_pass, until(module_pass), self.remark_levels)
                    inherit_locations(target)
            self._verify(op, module_pass, until(module_pass), verifier)
        except Exception:
            for instrument in self.instruments:
                instrument.failed(module_pass, op)
            raise

    def _nested(self, module: ModuleOp, pipeline: NestedPipeline, until: PipelineUntil) -> None:
        for op in pipeline.anchored(module):
            verifier = Verifier()
            for index, module_pass in enumerate(pipeline.passes):

                def inner(last: ModulePass, index: int = index) -> tuple[ModulePass, ...]:
                    return until(pipeline.up_to((*pipeline.passes[:index], last)))

                for instrument in reversed(self.instruments):
                    instrument.before_nested(module_pass, op)
                self._one(op, module, module_pass, inner, verifier)
                for instrument in self.instruments:
                    instrument.after_nested(module_pass, op)

    def _verify(self, op: Operation, module_pass: ModulePass, done: Sequence[ModulePass], verifier: Verifier) -> None:
        if not self.verify_each:
            return
        with phase("verify", self.instruments):
            found = find_invalid(op, verifier)
        if found is not None:
            culprit, message, _ = found
            place = place_in(None, culprit)
            raise PassFault(done, f'the pass "{module_pass.name}" left invalid IR: {place}: {message}')


@contextmanager
def fewer_collections() -> Generator[None]:
    """
    Let Python search for unused cycles less often: IR is a large graph that lives on, and to search it as often as is
    usual takes a tenth of the time. Where nothing is searched, it stays so.
    """
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(before[0], 100_000), max(before[1], 50), max(before[2], 100))
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _apply(
    ctx: Context, module: ModuleOp, module_pass: ModulePass, done: Sequence[ModulePass], remark_levels: bool
) -> None:
    # Asked before: a pass that works on what it does not know may leave anything.
    mismatch = mismatched_level(module_pass, module)
    before = module.clone() if mismatch is not None and remark_levels else None
    try:
        module_pass.apply(ctx, module)
    except UserError as error:
        # xDSL's pattern driver attaches the whole module to whatever passes through it.
        error.__notes__ = []
        raise
    except DiagnosticException as error:
        if isinstance(error, VerifyException):
            raise PassFault(done, f'the pass "{module_pass.name}" built invalid IR') from error
        raise UserError(str(error), notes=[f'the pass "{module_pass.name}" gave up here']) from error
    except Exception as error:
        if mismatch is not None:
            raise mismatch.error() from error
        raise PassFault(done, f'the pass "{module_pass.name}" crashed') from error
    if before is not None and mismatch is not None:
        if not module.is_structurally_equivalent(before):
            raise mismatch.error()
        print(f"remark: {mismatch.message('works at the')}: it finds nothing to do", file=sys.stderr)


def _load(available: AvailablePasses, name: str, place: str | None) -> type[ModulePass]:
    if (factory := available.get(name)) is None:
        near = did_you_mean(name, available)
        hint = near or "penstock-opt --list-passes names all passes"
        raise UserError(f'there is no pass "{name}"', loc=place, notes=[hint])
    return factory()


def make_pass(available: AvailablePasses, spec: ArgSpec, place: str) -> ModulePass:
    """
    The pass that `spec` describes; raises UserError, at `place`, for an unknown pass or option, for a value of another
    type, and for a planner, a tiler or another part that there is not: `PARTS` of a pass has the function that finds
    it, for each option that names one.
    """
    pass_type = _load(available, spec.name, place)
    names = [field.name.replace("_", "-") for field in dataclasses.fields(pass_type) if field.init]
    for given in (name.replace("_", "-") for name in spec.parameters):
        if given not in names:
            has = f"its options: {', '.join(names)}" if names else "it has no options"
            message = f'the pass "{spec.name}" has no option "{given}"'
            raise UserError(message, loc=place, notes=[did_you_mean(given, names) or has])
    if (fault := unfit(pass_type, spec)) is not None:
        described = [f"{each.name}: {each.takes}" for each in options_of(pass_type)]
        raise UserError(fault, loc=place, notes=[f"its options: {'; '.join(described)}"] if len(described) > 1 else [])
    try:
        made = pass_type.from_pass_spec(spec)
    except ValueError as error:
        raise UserError(f'the options of the pass "{spec.name}" do not fit: {error}', loc=place) from None
    parts: Mapping[str, Callable[[str], object]] = getattr(pass_type, "PARTS", {})
    for option, find in parts.items():
        if option in spec.normalize_parameter_names().parameters:
            try:
                find(str(getattr(made, option)))
            except UserError as error:
                raise UserError(error.message, loc=place, notes=error.notes) from None
    return made
