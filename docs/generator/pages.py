# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/reference: one for each door, and an index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import resolve_name

from docs.generator.api import module_section
from docs.generator.doors import classes_in, door_section, doors, entry_points_table
from docs.generator.ir import dialect_parts, upstream_parts
from docs.generator.machine import machine_parts
from docs.generator.passes import pass_level, pass_row, pass_section
from docs.generator.source import Module, Name, module_called, modules_matching

from penstock.runtime.levels import LEVELS
from penstock.tools.markdown import code, in_one_line, page, summary, table
from penstock.tools.universe import DIALECTS, PASSES

FOLDER = "docs/reference"
NOTE = "<!-- Written by `make docs` from docstrings: edit those. -->"


@dataclass(frozen=True)
class ApiPage:
    """A page on a door: the decorators or the entry points that lead through it, and what functions get and give."""

    file: str
    title: str
    about: str
    """What the page is for, in one sentence."""
    modules: tuple[str, ...]
    """Patterns of files from the folder of the project, with all names or `: Name Name`; there may be none of them."""
    group: str | None = None
    """The group of entry points through which a package offers such parts."""
    decorators: tuple[str, ...] = ()
    """The decorators that register them."""
    tables: tuple[str, ...] = ()
    """Dictionaries by the class of an op, as `module:name`, to which a package adds."""
    meanings: tuple[str, ...] = ()
    """Dictionaries from names to what they mean, as `module:name`."""

    def found(self) -> dict[Module, list[str]]:
        """The modules, each with the names that are meant; none means all."""
        found: dict[Module, list[str]] = {}
        for pattern in self.modules:
            files, _, names = pattern.partition(":")
            for module in modules_matching(files):
                found.setdefault(module, names.split())
        return found

    def names(self) -> Iterator[Name]:
        """The names that the page is on."""
        for module, only in self.found().items():
            yield from (name for name in module.names() if not only or name.name in only)


API_PAGES = (
    ApiPage(
        "python.md",
        "Compiling and running",
        "What `import penstock` offers: engines of models, kernels as functions, quantisation.",
        (
            "src/penstock/__init__.py: compile Engine DynamicEngine kernel KernelFunction schedule KernelSchedule"
            " quantize QuantizedModel get_include",
            "runtime/execution_context.py: Runnable ExecutionContext Destinations",
            "runtime/tensor_specs.py: Signature TensorSpec BoundDims",
            "dialects/diagnostics.py: UserError",
        ),
    ),
    ApiPage(
        "programs.md",
        "Programs, a step at a time",
        "Text in and out, passes, machines, lockstep, cycles and where bytes come from, as functions.",
        (
            "runtime/compiler.py: LoadedProgram load_input compile_module",
            "runtime/pipeline.py: pipeline passes_for",
            "dialects/context.py: PenstockContext make_context",
            "lowering/from_text.py: SourceText ParsedText parse_text",
            "lowering/to_text.py",
            "runtime/pass_manager.py: read_pipeline run_passes verify",
            "runtime/machines.py: attach_machine",
            "tools/lockstep.py: lockstep Report Comparison default_inputs",
            "runtime/simulator/run.py: run_program ProgramRun KernelRun OffChipTraffic",
            "runtime/simulator/__init__.py",
            "runtime/provenance.py",
        ),
    ),
    ApiPage(
        "planners.md",
        "Planners",
        "A planner gives the buffers of a memory their offsets: a function `Problem, Limits -> Outcome`.",
        (
            "passes/planning/problem.py",
            "passes/planning/conflicts.py: Conflicts Separation",
            "passes/planning/one_pass.py: FitFunction first_fit best_fit place_in_order by_size by_start by_conflicts",
            "passes/planning/registry.py",
        ),
        group="penstock.planners",
    ),
    ApiPage(
        "on_chip.md",
        "On-chip strategies",
        "What stays on chip between kernels: a function `OnChipProblem, Options -> OnChipAllocation`.",
        ("passes/planning/on_chip/problem.py", "passes/planning/on_chip/registry.py"),
        group="penstock.on_chip_strategies",
    ),
    ApiPage(
        "tilers.md",
        "Tilers",
        "Tiles, the order of their loops and the depth of their buffers are a `TilePlan`, found for a `TileProblem`.",
        ("passes/planning/tilers/registry.py", "passes/planning/tile_problem.py", "passes/planning/til*.py"),
        group="penstock.tilers",
    ),
    ApiPage(
        "schedules.md",
        "Schedules",
        "A schedule says how a kernel is computed: transformations as text, or as calls of Python.",
        (
            "passes/schedule/schedule.py",
            "passes/schedule/sections.py",
            "passes/schedule/deciding.py",
            "passes/schedule/state.py",
            "passes/schedule/primitives/*.py",
        ),
        tables=("penstock.passes.schedule.state:PRIMITIVES",),
    ),
    ApiPage(
        "importers.md",
        "Importers",
        "An importer makes graph ops of a node of an ONNX model.",
        ("lowering/from_onnx/table.py", "lowering/from_onnx/node.py: OnnxNode Unsupported Held Importer NodeCode"),
    ),
    ApiPage(
        "formulas.md",
        "Formulas",
        "A formula says what an elementwise op of the graph level computes, at all levels.",
        ("dialects/graph/formula.py", "dialects/graph/elementwise.py: PointwiseOp"),
        meanings=("penstock.dialects.graph.formula:FUNCTIONS",),
    ),
    ApiPage(
        "interpreter.md",
        "Interpreter",
        "What an op computes when it is interpreted, on arrays of NumPy.",
        ("runtime/interpreter/__init__.py", "runtime/interpreter/source.py: SourceWriter"),
        decorators=("implements", "interprets", "emits"),
    ),
    ApiPage(
        "lowerings.md",
        "Lowerings",
        "A lowering makes tensor ops of a graph op.",
        (
            "lowering/graph_to_tensor/kernel.py: KernelBuilder Computed KernelParameter",
            "passes/tensor/tensor_builder.py",
            "lowering/graph_to_tensor/elementwise.py: pointwise",
            "passes/scalar_body.py",
        ),
        decorators=("lowers",),
    ),
    ApiPage(
        "gradients.md",
        "Gradients",
        "A rule says how the derivatives of the operands of an op follow from that of its result.",
        ("passes/graph/gradients/code.py", "passes/graph/terms.py"),
        decorators=("gradient",),
    ),
    ApiPage(
        "layouts.md",
        "Layouts",
        "A rule says how an op is computed on operands whose dimensions are stored in another order, or in blocks.",
        ("passes/graph/layouts/rules.py: Need OpForm unchanged beside", "passes/graph/layouts/forms.py: Order"),
        decorators=("rule",),
    ),
    ApiPage(
        "emitters.md",
        "Emitters",
        "An emitter writes an op, in every language or in C, a rule the C of a pure scalar op.",
        (
            "lowering/codegen/__init__.py",
            "lowering/codegen/emitter.py",
            "lowering/codegen/views.py",
            "lowering/codegen/program.py",
            "lowering/codegen/text.py",
            "lowering/codegen/types.py",
            "lowering/to_c/__init__.py",
            "lowering/to_c/emitter.py",
            "lowering/to_c/text.py",
        ),
        tables=("penstock.lowering.codegen:EMITTERS", "penstock.lowering.to_c:RULES"),
    ),
    ApiPage(
        "llvm_emitters.md",
        "Emitters of LLVM IR",
        "An emitter writes the LLVM IR of an op, a rule that of a pure scalar op, on scalars or on vectors of them.",
        (
            "lowering/to_llvm/__init__.py",
            "lowering/to_llvm/emitter.py",
            "lowering/to_llvm/lanes.py",
            "lowering/to_llvm/text.py",
            "lowering/to_llvm/types.py",
        ),
        tables=("penstock.lowering.to_llvm:RULES",),
    ),
)


def pages() -> dict[str, str]:
    """The text of every page, by its path in the folder of the reference."""
    found: dict[str, str] = {}
    rows: list[tuple[str, str]] = []

    def add(file: str, title: str, about: str, text: str) -> None:
        found[file] = text
        rows.append((f"[{title}]({file})", about))

    for each in API_PAGES:
        if modules := each.found():
            sections = (part for module, only in modules.items() for part in module_section(module, only))
            add(each.file, each.title, each.about, page([NOTE], *_door_parts(each), *sections))
    about = "How doors are made: registries by the class of an op, and what installed packages offer."
    add("registries.md", "Registries", about, page([NOTE], ["# Registries"], [about], *_registry_parts()))
    about = "A machine is a TOML file: its tables, and the keys of each."
    add("machine_files.md", "Machine files", about, page([NOTE], ["# Machine files"], *machine_parts()))
    for name, place in sorted(DIALECTS.items()):
        module = module_called(place.partition(":")[0])
        assert module is not None
        text = page([NOTE], *dialect_parts(resolve_name(place), module))
        add(f"dialects/{name}.md", f"The dialect {code(name)}", summary(module.docstring), text)
    about = "Ops of MLIR's own dialects that are defined here, as xDSL has them not, or not as MLIR."
    add("dialects/mlir.md", "Ops of MLIR's dialects", about, page([NOTE], *upstream_parts()))
    for level, title, names in _passes_by_level():
        text = page([NOTE], [f"# {title}"], *(part for name in names for part in pass_section(name, PASSES[name])))
        found[_pass_page(level)] = text
    about = "Every pass by level, with what it requires and guarantees, its options, and IR before and after it."
    add("passes.md", "Passes", about, page([NOTE], ["# Passes"], *_pass_tables()))
    found["index.md"] = page([NOTE], ["# Reference"], _INDEX, table(("page", "what it is about"), rows))
    return found


_INDEX = """
What modules, dialects and passes say of themselves. `make docs` writes these pages from docstrings and from the strings
under fields. [Extending](../extending.md) shows each door at work. In a table of fields, one without a default must
be given.
""".strip().splitlines()


def _door_parts(each: ApiPage) -> Iterator[list[str]]:
    yield [f"# {each.title}"]
    yield [each.about]
    if each.group is not None and (ours := entry_points_table(each.group)):
        yield [f"A package offers its own through the entry point group {code(each.group)}. These are ours:"]
        yield ours
    for module in each.found():
        import_module(module.name)  # which fills registries
    for place in each.tables:
        names = ", ".join(map(code, classes_in(resolve_name(place))))
        yield [f"{code(place.partition(':')[2])} has an entry for {names}."]
    for place in each.meanings:
        found: dict[str, str] = resolve_name(place)
        yield table(("name", "what it is"), [(code(name), in_one_line(found[name])) for name in sorted(found)])
    for door in doors():
        if door.decorator in each.decorators:
            yield from door_section(door)


def _registry_parts() -> Iterator[list[str]]:
    shown = [decorator for each in API_PAGES for decorator in each.decorators]
    for door in doors():
        if door.decorator not in shown:
            yield from door_section(door)
    for module in modules_matching("dialects/registry.py", "dialects/plugins.py"):
        yield from module_section(module)


def _passes_by_level() -> Iterator[tuple[str, str, list[str]]]:
    """Each level with the title of its page and its passes; last what works at several."""
    for level in (*LEVELS, ""):
        names = [name for name in sorted(PASSES) if pass_level(PASSES[name]) == level]
        yield level, f"Passes of the {level} level" if level else "Passes of several levels", names


def _pass_page(level: str) -> str:
    return f"passes/{level or 'any'}.md"


def _pass_tables() -> Iterator[list[str]]:
    yield ["`penstock-opt --help-pass NAME` prints the same, of passes of installed packages as well."]
    for level, title, names in _passes_by_level():
        yield [f"## {title}"]
        rows = [pass_row(name, PASSES[name], _pass_page(level)) for name in names]
        yield table(("pass", "what it does", "options"), rows)
