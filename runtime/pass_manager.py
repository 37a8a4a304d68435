"""Running passes: a pipeline read from text, verification around every pass, observers, and faults with names."""

from __future__ import annotations

import dataclasses
import gc
import re
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass, get_pass_option_infos
from xdsl.utils.arg_spec import ArgSpec, ParameterType, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, VerifyException

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.plugins import factories
from penstock.dialects.verification import find_invalid
from penstock.dialects.verifier import Verifier
from penstock.lowering.from_text import ParsedText, place_in
from penstock.runtime.levels import mismatched_level

PIPELINE_NAME = "pass-pipeline"
"""The file name under which places in a pipeline's text are reported."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})
_STRING = r'"(?:\\.|[^"\\])*"'
_ITEM = re.compile(rf'(?:{_STRING}|\{{(?:{_STRING}|[^"}}])*\}}|\[[^\]]*\]|[^,])*')
"""What stands between two commas, of which those in quotes, in options and in pipelines of MLIR are not counted."""


class PassFault(Exception):
    """A pass that crashed, or that left IR which does not verify: a fault of the pass and not of its input."""

    def __init__(self, pipeline: Sequence[ModulePass], message: str):
        super().__init__(message)
        self.pipeline = tuple(pipeline)
        """The passes up to and with the faulty one: running them on the same input repeats the fault."""


class Observer(Protocol):
    """Instrumentation: called before and after every pass; the IR has been verified when `after` is called."""

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None: ...

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None: ...


Progress = Callable[[int, int, ModulePass], None]
"""Called before each pass with its number from 0, the number of passes, and the pass."""


@dataclass
class PassTimer:
    """Wall-clock time of every pass, verification included, in the order in which they ran."""

    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    _started: float = field(default=0.0, init=False)

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._started = time.perf_counter()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.seconds.append((module_pass.name, time.perf_counter() - self._started))


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
    wrapped = re.fullmatch(r"\s*builtin\.module\((.*)\)\s*", text, re.DOTALL)
    at, end = (0, len(text)) if wrapped is None else wrapped.span(1)
    items: list[PipelineItem] = []
    while at <= end:
        found = _ITEM.match(text, at, end)
        assert found is not None, "it matches nothing, too"
        items.append(whole.part(found[0].strip(), at + len(found[0]) - len(found[0].lstrip())))
        at = found.end() + 1
    return items if items[-1].text else items[:-1]


def read_pipeline(text: str) -> tuple[ModulePass, ...]:
    """
    The passes of `pass{option=1 other=2,3}, pass2`; MLIR's `builtin.module(...)` around it is dropped.

    Raises UserError, placed in the text, for an unknown pass or option and for a value of the wrong type.
    """
    available = available_passes()
    return tuple(make_pass(available, read_spec(item), item.place) for item in split_pipeline(text))


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
        raise UserError(lines[-1].strip(), loc=item.part("", at).place) from None
    return spec


def load_pass(name: str, place: str | None = None) -> type[ModulePass]:
    """The class of the pass `name`; raises UserError, with the nearest name, if there is none."""
    return _load(available_passes(), name, place)


def pipeline_text(passes: Sequence[ModulePass]) -> str:
    """The text, of one line, that `read_pipeline` reads back as the same passes."""
    return ",".join(_spec_text(module_pass.pipeline_pass_spec()) for module_pass in passes)


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
    Verify a module by xDSL's rules and ours; the UserError that it raises names the offending operation's location.

    A `verifier` that has seen a module like it is quicker than a new one.
    """
    if (found := find_invalid(module, verifier or Verifier())) is not None:
        op, message, notes = found
        raise UserError(message, loc=place_in(parsed, op), notes=notes)


def run_passes(
    ctx: Context,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    *,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
    verify_each: bool = True,
    remark_levels: bool = False,
    parsed: ParsedText | None = None,
) -> None:
    """
    Run `passes` on `module`, which is verified before the first and after each of them.

    With `remark_levels`, for pipelines that a person wrote, a pass that finds nothing of its level is remarked on
    stderr, and one that changes the program all the same is refused: it took it for what it is not.

    Raises UserError for what is the fault of the input, PassFault for a pass that crashes or breaks the IR.
    """
    verifier = None
    if isinstance(ctx, PenstockContext):
        # What is handed on is kept no longer than it is of use: it holds the module as it was.
        verifier, ctx.verifier = ctx.verifier, None
    verifier = verifier or Verifier()
    with fewer_collections():
        if verify_each:
            verify(module, parsed, verifier)
        for index, module_pass in enumerate(passes):
            if progress is not None:
                progress(index, len(passes), module_pass)
            for observer in observers:
                observer.before(module_pass, module)
            _apply(ctx, module, module_pass, passes[: index + 1], remark_levels)
            if verify_each and (found := find_invalid(module, verifier)) is not None:
                op, message, _ = found
                place = place_in(None, op)
                raise PassFault(
                    passes[: index + 1],
                    f'the pass "{module_pass.name}" left invalid IR: {place}: {message}',
                )
            for observer in observers:
                observer.after(module_pass, module)


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
    options = [field.name for field in dataclasses.fields(pass_type) if field.init]
    for given in spec.normalize_parameter_names().parameters:
        if given not in options:
            near = did_you_mean(given, options)
            has = f"its options: {', '.join(options)}" if options else "it has no options"
            raise UserError(
                f'the pass "{spec.name}" has no option "{given}"',
                loc=place,
                notes=[near or has],
            )
    try:
        made = pass_type.from_pass_spec(spec)
    except ValueError as error:
        described = ", ".join(f"{o.name}: {o.expected_type}" for o in get_pass_option_infos(pass_type))
        raise UserError(
            f'the options of the pass "{spec.name}" do not fit: {error}',
            loc=place,
            notes=[f"its options: {described}"],
        ) from None
    parts: Mapping[str, Callable[[str], object]] = getattr(pass_type, "PARTS", {})
    for option, find in parts.items():
        if option in spec.normalize_parameter_names().parameters:
            try:
                find(str(getattr(made, option)))
            except UserError as error:
                raise UserError(error.message, loc=place, notes=error.notes) from None
    return made
