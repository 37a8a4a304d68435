# SPDX-License-Identifier: Apache-2.0
"""The text of the schedules of a program: reading what is given, and writing what has been applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, UnitAttr, i64
from xdsl.dialects.transform import ApplyRegisteredPassOp, NamedSequenceOp, YieldOp
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import USAGE, UserError, location_of, nearest_or_all
from penstock.dialects.upstream.transform import IncludeOp
from penstock.dialects.upstream.transform_tune import AlternativesOp, KnobOp
from penstock.lowering.from_text import SourceText, parse_text, read_text
from penstock.lowering.to_text import module_text
from penstock.passes.schedule.deciding import given_for
from penstock.passes.schedule.sections import LOOPS, SECTIONS, START, decides
from penstock.runtime.levels import LEVELS, level_of
from penstock.runtime.pass_manager import verify

WITH_SEQUENCES = "transform.with_named_sequence"
"""The attribute that MLIR wants of a module with named sequences."""


def read_schedules(source: str | Path | SourceText, knobs: Sequence[str] = ()) -> dict[str, NamedSequenceOp]:
    """
    The schedules in a file, or in a text, by the names of their kernels.

    A sequence that others include is a macro: its ops take the place of `transform.include`, and it is the schedule of
    no kernel. `knobs`, each `KERNEL.NAME=VALUE`, select values of `transform.tune.knob` and regions of
    `transform.tune.alternatives`. Raises UserError for text that does not parse or verify, for what is no schedule, and
    for a knob or a value that is not there.
    """
    parsed = parse_text(make_context(), source if isinstance(source, SourceText) else read_text(source))
    _refuse_repeated(parsed.module)
    verify(parsed.module, parsed)
    sequences: dict[str, NamedSequenceOp] = {}
    for op in parsed.module.ops:
        if not isinstance(op, NamedSequenceOp):
            raise UserError(
                f"a file of schedules holds named sequences, not {op.name}",
                loc=location_of(op),
                notes=["transform.named_sequence @KERNEL(%kernel: !transform.any_op {transform.readonly}) { ... }"],
            )
        sequences[op.sym_name.data] = op
        _require_known_attributes(op)
    found = _expand(sequences)
    for sequence in found.values():
        _require_sections(sequence)
    for knob in knobs:
        _select(found, knob)
    return found


def _refuse_repeated(module: ModuleOp) -> None:
    """Raise UserError for the second schedule of a kernel, at its place, which verification of the module has not."""
    first: dict[str, NamedSequenceOp] = {}
    for op in module.ops:
        if isinstance(op, NamedSequenceOp) and first.setdefault(op.sym_name.data, op) is not op:
            raise UserError(
                f"kernel @{op.sym_name.data} has two schedules",
                loc=location_of(op),
                notes=[f"the other is at {location_of(first[op.sym_name.data])}"],
            )


def _require_known_attributes(sequence: NamedSequenceOp) -> None:
    """Raise UserError for an attribute in braces that its op ignores, unless a dialect's name is before it."""
    for op in sequence.walk():
        definition = type(op).get_irdl_definition() if isinstance(op, IRDLOperation) else None
        if definition is None or op is sequence:
            continue
        for name in op.attributes:
            if "." in name or name in definition.attributes:
                continue
            notes = [nearest_or_all(name, sorted(definition.properties), "attributes")]
            if name in definition.properties:
                notes = [f"it is written before the braces: {name} ..."]
            raise UserError(f'{op.name} takes no attribute "{name}" in braces', loc=location_of(op), notes=notes)


def _require_sections(sequence: NamedSequenceOp) -> None:
    """Raise UserError where a schedule goes on after a pass that is none of `SECTIONS`, or not in their order."""
    kernel: SSAValue = sequence.body.block.args[0]
    last = START
    for op in sequence.walk():
        if not isinstance(op, ApplyRegisteredPassOp):
            continue
        name = op.pass_name.data
        if name not in SECTIONS:
            raise UserError(
                f'a schedule does not go on after "{name}"',
                loc=location_of(op),
                notes=[nearest_or_all(name, SECTIONS, "passes")],
            )
        if last != START and SECTIONS.index(name) <= SECTIONS.index(last):
            raise UserError(
                f'a section after "{name}" cannot follow one after "{last}"',
                loc=location_of(op),
                notes=[f"the compiler runs {', '.join(SECTIONS)}, in this order, each once"],
            )
        if op.parent is not sequence.body.block or op.operands[0] is not kernel:
            raise UserError(
                "a section begins with the handle of the kernel in the section before it", loc=location_of(op)
            )
        kernel, last = op.results[0], name


def require_applied(ctx: PenstockContext, module: ModuleOp) -> None:
    """
    Raise UserError for a schedule that `ctx` was given, and that passes went by: one with a section of a level that the
    module has left, and of which nothing was applied; or where nothing at all was applied.
    """
    given, applied = ctx.schedules.given, ctx.schedules.applied
    level = LEVELS.index(level_of(module))
    for name, sequence in given.items():
        done = [each for each in applied.values() if given_for(ctx.schedules, each) is sequence]
        sections = (START, LOOPS) if name in ctx.schedules.left_out else (START, *SECTIONS)
        for section in sections:
            is_left = level > LEVELS.index("tensor" if section == START else "loop")
            is_applied = any(decides(each, section) for each in done)
            if decides(sequence, section) and not is_applied and (is_left or given.keys().isdisjoint(applied)):
                where = f"after {section}" if section != START else "of the tensor level"
                raise UserError(
                    f"the schedule of @{name} is not applied: no pass that ran applies its section {where}",
                    loc=location_of(sequence),
                    notes=["the passes tile, promote, multi-buffer and accel-pipeline apply sections, in this order"],
                )


def _expand(sequences: Mapping[str, NamedSequenceOp]) -> dict[str, NamedSequenceOp]:
    """The schedules of kernels, with the ops of the sequences that they include in place."""
    included: set[str] = set()
    done: set[str] = set()

    def expand(sequence: NamedSequenceOp, around: tuple[str, ...]) -> None:
        name = sequence.sym_name.data
        if name in around:
            raise UserError(f"@{name} includes itself", loc=location_of(sequence))
        if name in done:
            return
        for op in [each for each in sequence.walk() if isinstance(each, IncludeOp)]:
            target = op.target.string_value()
            macro = sequences.get(target)
            if macro is None:
                raise UserError(
                    f"there is no sequence @{target}",
                    loc=location_of(op),
                    notes=[nearest_or_all(target, sequences, "sequences")],
                )
            expand(macro, (*around, name))
            included.add(target)
            _replace_include(op, macro)
        done.add(name)

    for sequence in sequences.values():
        expand(sequence, ())
    found = {name: sequence for name, sequence in sequences.items() if name not in included}
    for name, sequence in found.items():
        type = sequence.function_type
        if len(type.inputs) != 1 or type.outputs.data:
            raise UserError(
                f"@{name} is no schedule of a kernel, and nothing includes it",
                loc=location_of(sequence),
                notes=["a schedule takes one handle, that of its kernel, and returns nothing"],
            )
    return found


def _replace_include(op: IncludeOp, macro: NamedSequenceOp) -> None:
    """Put the ops of a sequence, which includes nothing any more, where it is included."""
    type = macro.function_type
    if list(op.operand_types) != list(type.inputs) or list(op.result_types) != list(type.outputs):
        raise UserError(
            f"@{macro.sym_name.data} is {type}, and is included with other types",
            loc=location_of(op),
            notes=[f"it is at {location_of(macro)}"],
        )
    if op.failure_propagation_mode.value.data != IncludeOp.MODES["propagate"]:
        raise UserError("what is refused ends a schedule", loc=location_of(op), notes=["write failures(propagate)"])
    values: dict[SSAValue, SSAValue] = dict(zip(macro.body.block.args, op.arguments, strict=True))
    results: Sequence[SSAValue] = ()
    for each in macro.body.block.ops:
        if isinstance(each, YieldOp):
            results = [values[operand] for operand in each.operands]
        else:
            Rewriter.insert_op(each.clone(values), InsertPoint.before(op))
    Rewriter.replace_op(op, [], results)


def _select(schedules: Mapping[str, NamedSequenceOp], text: str) -> None:
    """Give a knob of a schedule, or alternatives, the value that `KERNEL.NAME=VALUE` says."""
    place, equals, value = text.partition("=")
    kernel, dot, name = place.partition(".")
    if not equals or not dot or not kernel or not name:
        raise UserError(f'"{text}" is no value of a knob', notes=["write KERNEL.NAME=VALUE"], status=USAGE)
    if kernel not in schedules:
        raise UserError(f"there is no schedule of @{kernel}", notes=[nearest_or_all(kernel, schedules, "schedules")])
    choices = [op for op in schedules[kernel].walk() if isinstance(op, KnobOp | AlternativesOp)]
    chosen = [op for op in choices if _name_of(op) == name]
    if not chosen:
        names = list(dict.fromkeys(map(_name_of, choices)))
        raise UserError(
            f'the schedule of @{kernel} has no knob "{name}"',
            loc=location_of(schedules[kernel]),
            notes=[nearest_or_all(name, names, "knobs")] if names else [],
        )
    for op in chosen:
        options = _options_of(op)
        if value not in options:
            raise UserError(
                f'knob "{name}" is not to be {value}',
                loc=location_of(op),
                notes=[f"its options are {', '.join(options)}"],
            )
        op.properties["selected" if isinstance(op, KnobOp) else "selected_region_attr"] = options[value]


def _name_of(op: KnobOp | AlternativesOp) -> str:
    return op.knob_name.data if isinstance(op, KnobOp) else op.choice_name.data


def _options_of(op: KnobOp | AlternativesOp) -> dict[str, Attribute]:
    """What may be selected, by its text; of alternatives the numbers of the regions."""
    if isinstance(op, AlternativesOp):
        return {str(number): IntegerAttr(number, i64) for number in range(len(op.alternatives))}
    if not isa(op.options, ArrayAttr):
        raise UserError(f"{op.options} are no options: a list is", loc=location_of(op))
    return {str(option.value.data) if isa(option, IntegerAttr) else str(option): option for option in op.options.data}


def schedules_text(ctx: PenstockContext, schedules: Mapping[str, NamedSequenceOp]) -> str:
    """Schedules as a file that `read_schedules` reads."""
    sequences = [sequence.clone() for sequence in schedules.values()]
    for sequence in sequences:
        if not isinstance(sequence.body.block.last_op, YieldOp):
            sequence.body.block.add_op(YieldOp())
    return module_text(ctx, ModuleOp(sequences, {WITH_SEQUENCES: UnitAttr()}))
