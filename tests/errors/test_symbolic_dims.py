# SPDX-License-Identifier: Apache-2.0
"""What the commands say about symbolic dimensions that are missing, misspelt, contradictory or needed as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from penstock.dialects.weights import Array

if TYPE_CHECKING:
    from tests.conftest import Command, Finished


def save_model(path: Path, nodes: list[NodeProto], inputs: dict[str, list[Any]], **weights: Array) -> Path:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x + z, both Nx4, then reshaped to pairs of 6 elements."""
    nodes = [
        helper.make_node("Add", ["x", "z"], ["s"], "sum"),
        helper.make_node("Reshape", ["s", "pairs"], ["y"], "pairs of six"),
    ]
    shapes: dict[str, list[Any]] = {"x": ["N", 4], "z": ["N", 4]}
    return save_model(tmp_path / "small.onnx", nodes, shapes, pairs=np.array([-1, 6]))


@pytest.fixture(params=["model", "text"])
def program(request: pytest.FixtureRequest, penstock: Command, model: Path) -> Path:
    """The model, or its text with the dimension open."""
    if request.param == "model":
        return model
    assert penstock("import", model, "-q").status == 0
    return model.with_suffix(".mlir")


def refused(finished: Finished, *parts: str, status: int = 1) -> None:
    """The command left with `status`, said all `parts` on stderr, and had no traceback."""
    assert finished.status == status, finished.err
    assert "Traceback" not in finished.err
    for part in parts:
        assert part in finished.err
    assert finished.out == ""


def tensor(path: Path, *shape: int) -> Path:
    np.save(path, np.zeros(shape, np.float32))
    return path


def test_a_dimension_bound_twice_names_both_sizes(penstock: Command, program: Path) -> None:
    words = ("--dim", "N=4", "--dim", "N=2")
    refused(penstock("compile", program, *words), "error: the dimension N is bound twice, to 4 and to 2", status=2)


def test_a_dimension_bound_twice_alike_is_fine(penstock: Command, program: Path) -> None:
    words = ("--dim", "N=3", "--dim", "N=3", "--emit", "graph", "-o", "g.mlir")
    assert penstock("compile", program, *words).status == 0


def test_a_size_beyond_any_memory_is_refused_where_the_program_is(penstock: Command, program: Path) -> None:
    for size in (2**31, 10**15):
        finished = penstock("compile", program, "--dim", f"N={size}", "--emit", "graph", "-o", "g.mlir")
        refused(finished, f'the dimension "N" must be at most {2**31 - 1}, not {size}')
    refused(penstock("compile", program, "--dim", "N=" + "9" * 5000), "is no size of a dimension", status=2)
    assert not Path("g.mlir").exists()


def test_a_dimension_that_is_not_bound_is_a_fault_of_the_program(penstock: Command, program: Path) -> None:
    for command in ("compile", "check", "run"):
        refused(penstock(command, program), f'{program}: error: the symbolic dimension is not bound: "N"')
    assert not program.with_suffix(".plan").exists()


def test_inputs_that_do_not_fit_are_told_before_what_they_leave_open(
    penstock: Command, program: Path, tmp_path: Path
) -> None:
    flat, good = tensor(tmp_path / "flat.npy", 4), tensor(tmp_path / "good.npy", 3, 4)
    refused(penstock("run", program, "--input", flat, flat), 'the input "x" has the shape (4,)', "takes Nx4")
    refused(penstock("run", program, "--input", f"q={good}"), 'there is no input "q"')


def test_a_misspelt_dimension_gets_the_nearest_one(penstock: Command, tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"], "r")], {"x": ["batch", 4]})
    assert penstock("import", path, "-q").status == 0
    for program in (path, path.with_suffix(".mlir")):
        refused(
            penstock("compile", program, "--dim", "bacth=2"), 'no symbolic dimension "bacth"', 'did you mean "batch"?'
        )


def test_a_size_that_contradicts_an_input_names_both_sources(penstock: Command, program: Path, tmp_path: Path) -> None:
    x, z = tensor(tmp_path / "x.npy", 2, 4), tensor(tmp_path / "z.npy", 3, 4)
    refused(
        penstock("run", program, "--dim", "N=4", "--input", x, x),
        "error: N is 4 by --dim, but input x has 2 there (dimension 0 of ?x4)",
    )
    refused(
        penstock("run", program, "--input", x, z),
        "error: N is 2 by input x (dimension 0 of ?x4), but input z has 3 there (dimension 0 of ?x4)",
    )


def test_an_empty_batch_is_refused(penstock: Command, program: Path, tmp_path: Path) -> None:
    empty = tensor(tmp_path / "x.npy", 0, 4)
    refused(penstock("run", program, "--input", empty, empty), "N must be at least 1, but input x has 0 there")


def test_sizes_with_which_an_op_is_invalid_are_refused_where_it_stands(penstock: Command, program: Path) -> None:
    finished = penstock("compile", program, "--dim", "N=2")
    refused(finished, "8 elements of tensor<2x4xf32> do not fit the shape", "pairs of six")


def test_dims_are_of_no_use_to_text_whose_shapes_are_known(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "f.mlir").write_text("func.func @main(%x: tensor<2xf32>) { func.return }\n")
    refused(penstock("run", "f.mlir", "--dim", "N=2"), 'no symbolic dimension "N"', "none: all shapes are static")


def test_a_fault_in_the_text_is_found_before_anything_is_bound(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "f.mlir").write_text("""func.func @main(%x: tensor<?xf32> {graph.dims = ["N"]}) -> tensor<3xf32> {
  %y = graph.add %x, %x : (tensor<?xf32>, tensor<?xf32>) -> tensor<3xf32>
  func.return %y : tensor<3xf32>
}
""")
    refused(penstock("compile", "f.mlir", "--dim", "N=3"), "f.mlir:2:3: error: ", "give tensor<?xf32>")


def test_text_with_names_that_do_not_fit_is_refused(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "f.mlir").write_text('func.func @main(%x: tensor<?xf32> {graph.dims = ["N", "M"]}) { func.return }\n')
    refused(penstock("compile", "f.mlir", "--dim", "N=3"), "2 names ['N', 'M'] for 1 dimensions")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ('["N"]', "1 names ['N'] for 2 dimensions"),
        ('["N", "M"]', 'dimension 1 is called "M", but its size is 4'),
        ("[1, 2]", "a list of strings"),
    ],
)
def test_names_that_do_not_fit_are_found_when_the_text_is_read(penstock_opt: Command, names: str, message: str) -> None:
    text = f"func.func @main(%x: tensor<?x4xf32> {{graph.dims = {names}}}) {{\n  func.return\n}}\n"
    refused(penstock_opt(stdin=text), "<stdin>:1:1: error: ", message)


@pytest.mark.parametrize(
    ("nodes", "node", "names"),
    [
        # The number of elements of what Range gives is a number nobody knows.
        (
            [
                helper.make_node("Shape", ["x"], ["s"], "shape"),
                helper.make_node("Gather", ["s", "axis"], ["n"], "count"),
                helper.make_node("Range", ["zero", "n", "one"], ["r"], "positions"),
                helper.make_node("Cast", ["r"], ["f"], "floats", to=1),
                helper.make_node("Mul", ["x", "f"], ["y"], "product"),
            ],
            'node "positions" (Range)',
            "--dim T=SIZE",
        ),
        # A mean that divides by the number of rows.
        (
            [
                helper.make_node("Shape", ["x"], ["s"], "shape"),
                helper.make_node("Gather", ["s", "axis"], ["n"], "count"),
                helper.make_node("Cast", ["n"], ["f"], "floats", to=1),
                helper.make_node("Div", ["x", "f"], ["y"], "mean"),
            ],
            'node "floats" (Cast)',
            "--dim T=SIZE",
        ),
        # The last row.
        ([helper.make_node("Gather", ["x", "last"], ["y"], "final", axis=1)], 'node "final" (Gather)', "--dim T=SIZE"),
        # Rows that may be fewer than asked for.
        (
            [helper.make_node("Slice", ["x", "zeros", "fives", "axes"], ["y"], "first five")],
            'node "first five" (Slice)',
            "--dim T=SIZE",
        ),
        # A decision about sizes.
        (
            [
                helper.make_node("Shape", ["x"], ["s"], "shape"),
                helper.make_node("Equal", ["s", "fives"], ["e"], "decision"),
                helper.make_node("Where", ["e", "s", "s"], ["t"], "choice"),
                helper.make_node("Reshape", ["x", "t"], ["y"], "reshape"),
            ],
            'node "decision" (Equal)',
            "--dim N=SIZE",
        ),
        # A size that is more than a name, where the op can hold names only.
        (
            [
                helper.make_node("Shape", ["x"], ["s"], "shape"),
                helper.make_node("Add", ["s", "s"], ["d"], "doubled"),
                helper.make_node("Expand", ["unit", "d"], ["y"], "expansion"),
            ],
            'node "expansion" (Expand)',
            "--dim N=SIZE",
        ),
    ],
    ids=["range", "float", "last", "clamped", "decision", "doubled"],
)
def test_a_node_that_needs_a_number_says_which_dimension_to_bind(
    penstock: Command, tmp_path: Path, nodes: list[NodeProto], node: str, names: str
) -> None:
    weights: dict[str, Array] = {
        "axis": np.array(1),
        "zero": np.array(0),
        "one": np.array(1),
        "last": np.array(-1),
        "zeros": np.array([0]),
        "fives": np.array([5]),
        "axes": np.array([1]),
        "unit": np.ones(1, np.float32),
    }
    path = save_model(tmp_path / "m.onnx", nodes, {"x": ["N", "T"]}, **weights)
    refused(penstock("import", path), f"m.onnx: error: {node}: the size ", f"note: bind it: {names}")
    assert not (tmp_path / "m.mlir").exists()


def test_an_output_that_is_a_size_says_which_dimension_to_bind(penstock: Command, tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.onnx", [helper.make_node("Shape", ["x"], ["y"], "shape")], {"x": ["N", 4]})
    refused(penstock("import", path), 'm.onnx: error: output "y": the size N', "note: bind it: --dim N=SIZE")


def open_model(path: Path, *nodes: NodeProto) -> Path:
    """A mean over T, and the first five of N, of an input [N, T, D]; before other nodes, which give y."""
    return save_model(
        path,
        [
            helper.make_node("Shape", ["x"], ["s"], "shape"),
            helper.make_node("Gather", ["s", "one"], ["n"], "count"),
            helper.make_node("Cast", ["n"], ["f"], "floats", to=1),
            helper.make_node("Div", ["x", "f"], ["m"], "mean"),
            helper.make_node("Slice", ["x", "zeros", "fives"], ["z"], "first five"),
            *nodes,
        ],
        {"x": ["N", "T", "D"]},
        one=np.array(1),
        zeros=np.array([0]),
        fives=np.array([5]),
    )


def test_all_that_needs_a_size_is_told_at_once(penstock: Command, tmp_path: Path) -> None:
    path = open_model(tmp_path / "m.onnx", helper.make_node("Concat", ["m", "z"], ["y"], "join", axis=0))
    for command in ("import", "compile"):
        finished = penstock(command, path)
        refused(
            finished,
            'm.onnx: error: node "floats" (Cast): the size T',
            'note: node "first five" (Slice): the size N',
            "note: bind it: --dim N=SIZE --dim T=SIZE\nnote: bind these too before it is compiled: --dim D=SIZE\n",
        )
    assert penstock("compile", path, "-q", "--dim", "N=9", "--dim", "T=2", "--dim", "D=4").status == 0


def test_what_is_not_supported_is_told_together_with_the_open_dimensions(penstock: Command, tmp_path: Path) -> None:
    unknown = helper.make_node("Frobnicate", ["m"], ["y"], "odd", domain="com.lab")
    finished = penstock("compile", open_model(tmp_path / "m.onnx", unknown))
    refused(
        finished,
        "m.onnx: error: the model uses 1 operator not supported: com.lab.Frobnicate",
        "note: bind it: --dim N=SIZE --dim T=SIZE",
        status=3,
    )


@pytest.mark.parametrize("unnamed", [None, "?", "", " "])
def test_dimensions_without_a_name_need_not_be_equal(penstock: Command, tmp_path: Path, unnamed: str | None) -> None:
    path = save_model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"], "r")], {"x": [unnamed, 3, unnamed]})
    refused(penstock("compile", path), '"x.0", "x.2"', "bind it: --dim x.0=SIZE --dim x.2=SIZE")
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 5), np.float32))
    assert penstock("run", path, "-q", "--input", tmp_path / "x.npy").status == 0
