# SPDX-License-Identifier: Apache-2.0
"""Sizes that are not known: the algebra of sizes, what inference says about them, and what binding does."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from programs import parsed
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph.sizes import (
    Dim,
    UnknownSize,
    decided_equal,
    exact_quotient,
    may_broadcast_to,
    may_equal,
    may_reach,
    named_size,
    unknown_size,
)
from penstock.lowering.to_text import module_text
from penstock.passes.graph.bind_dims import bind_dims
from penstock.runtime.pass_manager import read_pipeline, run_passes

N, T = named_size("N"), named_size("T")


# the algebra


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (N * 3 * 8, "24 * N"),
        (math.prod([2, N, T]), "2 * N * T"),
        (sum([N, N, 2]), "2 * N + 2"),
        (7 - N, "-N + 7"),
        ((T + 2 - 3) // 1 + 1, "T"),
        ((4 * N + 3) // 4, "N"),
        ((T - 3) // 2 + 1, "(T + 1) // 2 - 1"),
        (((T - 1) // 2 + 1 - 1) // 2 + 1, "(T + 3) // 4"),
        (-(-T // 2), "T - T // 2"),
        (3 * T // 2 * 3, "3 * T + 3 * (T // 2)"),
        ((6 * N + 4 * T + 1) // 10, "(3 * N + 2 * T) // 5"),
        ((N // 2 * 2 + T) // 3, "(2 * (N // 2) + T) // 3"),
        (3 * N // N, "3"),
        (N - N, "0"),
        ((N + 1) * (N - 1) - N * N, "-1"),
        (unknown_size() + 1, "?"),
    ],
)
def test_sizes_are_computed_exactly(size: int, text: str) -> None:
    assert str(size) == text


def test_a_difference_that_is_a_number_is_one() -> None:
    assert (N + 3) - N == 3
    assert isinstance((N + 3) - N, int)


def test_quotients_without_a_remainder_are_found_and_others_are_not() -> None:
    assert exact_quotient(N * T * 12, T * 4) == 3 * N
    assert exact_quotient(N * (N + 1) * 4, (N + 1) * 2) == 2 * N
    assert exact_quotient(N * 3, 2) is None
    assert exact_quotient(N + 1, N) is None
    assert exact_quotient(12, 4) == 3
    assert exact_quotient(12, 0) is None


def test_only_what_is_provable_is_decided() -> None:
    assert N == named_size("N")
    assert N != T
    assert N > 0
    assert 2 * N + 1 >= 3
    assert not N < 1
    assert max(N - 1 - N, 0) == 0
    for undecided in (lambda: N > 3, lambda: min(N, 5), lambda: N < T, lambda: decided_equal(N, 1)):
        with pytest.raises(UnknownSize):
            undecided()


def test_what_is_not_provably_wrong_may_be_right() -> None:
    assert may_equal(N, 4)
    assert may_equal(N, T)
    assert not may_equal(N + 1, N)
    assert not may_equal(N + 4, 4)
    assert may_reach(N, 9)
    assert not may_reach(N - N + 2, 3)
    assert may_broadcast_to((N, 1), (T, 4))
    assert not may_broadcast_to((3, N), (N + 3, N))


UNKNOWN_USES: list[Callable[[], object]] = [
    lambda: int(N),
    lambda: float(N),
    lambda: range(N),
    lambda: [0] * N,
    lambda: N / 2,
    lambda: 5 % N,
    lambda: np.zeros((N, 2)),
    lambda: np.tri(N, 3),
    lambda: slice(0, 4).indices(N),
]


@pytest.mark.parametrize("use", UNKNOWN_USES)
def test_no_use_as_a_number_goes_unnoticed(use: Callable[[], object]) -> None:
    with pytest.raises(UnknownSize, match="the size N") as caught:
        use()
    assert caught.value.names == ("N",)


def test_a_size_that_went_through_a_rounded_quotient_still_names_what_decides_it() -> None:
    size = (N * T - 3) // 2
    assert isinstance(size, Dim)
    assert size.names == ("N", "T")
    assert size.symbol is None


# what the verifier says

ARGUMENTS = (
    "%a: tensor<?x4xf32>, %b: tensor<?x4xf32>, %c: tensor<3x4xf32>, %m: tensor<?x?xf32>, %i: tensor<?x3x?x9xf32>"
)
VALID = [
    "graph.add %a, %b : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>",
    "graph.add %a, %c : (tensor<?x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>",
    "graph.prelu %c, %a : (tensor<3x4xf32>, tensor<?x4xf32>) -> tensor<3x4xf32>",
    "graph.matmul %m, %a : (tensor<?x?xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>",
    "graph.gemm %m, %a : (tensor<?x?xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>",
    "graph.concat %a, %c axis 0 : (tensor<?x4xf32>, tensor<3x4xf32>) -> tensor<?x4xf32>",
    "graph.concat %a, %c axis 1 : (tensor<?x4xf32>, tensor<3x4xf32>) -> tensor<3x8xf32>",
    "graph.pad %a pads [1, 0, 0, 0] : tensor<?x4xf32> -> tensor<?x4xf32>",
    "graph.reduce_max %a axes [0] : tensor<?x4xf32> -> tensor<1x4xf32>",
    "graph.max_pool %i kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_mode true"
    " : tensor<?x3x?x9xf32> -> tensor<?x3x?x5xf32>",
    "graph.global_max_pool %i : tensor<?x3x?x9xf32> -> tensor<?x3x1x1xf32>",
    "graph.reshape %c : tensor<3x4xf32> -> tensor<?x2xf32>",
    'graph.reshape %m dims ["N", "", ""] : tensor<?x?xf32> -> tensor<?x?x2xf32>',
]


@pytest.mark.parametrize("text", VALID)
def test_a_result_is_unknown_where_inference_cannot_tell_a_number(text: str) -> None:
    parsed(f"func.func @f({ARGUMENTS}) {{ %q = {text} func.return }}").verify()


REFUSED = [
    ("graph.add %a, %c : (tensor<?x4xf32>, tensor<3x4xf32>) -> tensor<?x4xf32>", "give tensor<3x4xf32>"),
    ("graph.add %a, %b : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<3x4xf32>", "give tensor<.x4xf32>"),
    (
        "graph.add %a, %i : (tensor<?x4xf32>, tensor<?x3x?x9xf32>) -> tensor<?x3x?x9xf32>",
        "do not broadcast: 4 against 9",
    ),
    ("graph.matmul %c, %c : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>", "the inner sizes 4 .* and 3"),
    (
        "graph.concat %i, %i axis 2 : (tensor<?x3x?x9xf32>, tensor<?x3x?x9xf32>) -> tensor<?x3x18x9xf32>",
        "give tensor<.x3x.x9xf32>",
    ),
    (
        "graph.reshape %m : tensor<?x?xf32> -> tensor<?x?x2xf32>",
        r"dimensions \[0, 1\] of tensor<.x.x2xf32> do not follow .* name all but one of them",
    ),
    ('graph.reshape %c dims ["N", ""] : tensor<3x4xf32> -> tensor<6x2xf32>', 'called "N", but its size is 6'),
    ('graph.reshape %c dims ["N"] : tensor<3x4xf32> -> tensor<?x2xf32>', "1 names .* for 2 dimensions"),
    ("graph.expand %c : tensor<3x4xf32> -> tensor<?x3x4xf32>", "give tensor<1x3x4xf32>"),
    ('graph.expand %c dims ["N", ""] : tensor<3x4xf32> -> tensor<?x4xf32>', "give tensor<3x4xf32>"),
    (
        "graph.slice %c starts [0, 0] sizes [-1, 4] steps [1, 1] : tensor<3x4xf32> -> tensor<3x4xf32>",
        "the size of dimension 0 is -1",
    ),
    (
        "graph.slice %a starts [0, 0] sizes [-1, 4] steps [-1, 1] : tensor<?x4xf32> -> tensor<?x4xf32>",
        "the size of dimension 0 is -1",
    ),
    (
        "graph.slice %a starts [0, 2] sizes [-1, 4] steps [1, 1] : tensor<?x4xf32> -> tensor<?x4xf32>",
        "dimension 1 reads from 2 to 5, outside its 4 elements",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_the_verifier_refuses_what_no_sizes_make_right(text: str, message: str) -> None:
    module = parsed(f"func.func @f({ARGUMENTS}) {{ %q = {text} func.return }}")
    with pytest.raises(VerifyException, match=message):
        module.verify()


# binding


def test_what_is_computed_from_the_number_of_elements_is_checked_when_it_is_bound() -> None:
    text = """
    func.func @main(%x: tensor<?x3xf32> {graph.dims = ["N", ""]}) -> tensor<?x2xf32> {
      %y = graph.reshape %x : tensor<?x3xf32> -> tensor<?x2xf32> loc("pairs")
      func.return %y : tensor<?x2xf32>
    }"""
    module = parsed(text)
    bind_dims(module, {"N": 4})
    assert "tensor<4x3xf32> -> tensor<6x2xf32>" in module_text(make_context(), module)
    with pytest.raises(UserError, match="15 elements of tensor<5x3xf32> do not fit") as caught:
        bind_dims(parsed(text), {"N": 5})
    assert caught.value.loc == '"pairs"'
    assert caught.value.notes == ("with N = 5",)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("graph.slice %x starts [3, 0] sizes [-1, 4] steps [1, 1]", "dimension 0 reads from 3 to 3, outside its 2"),
        ("graph.slice %x starts [2, 0] sizes [1, 4] steps [1, 1]", "dimension 0 reads from 2 to 2, outside its 2"),
    ],
)
def test_a_slice_beyond_a_size_is_found_when_it_is_bound(op: str, message: str) -> None:
    result = "tensor<?x4xf32>" if "-1" in op else "tensor<1x4xf32>"
    module = parsed(
        f'func.func @main(%x: tensor<?x4xf32> {{graph.dims = ["N", ""]}}) -> {result} {{'
        f" %y = {op} : tensor<?x4xf32> -> {result} func.return %y : {result} }}"
    )
    module.verify()
    with pytest.raises(UserError, match=message):
        bind_dims(module, {"N": 2})


def test_two_arguments_with_one_name_are_bound_alike() -> None:
    module = parsed("""
    func.func @main(%x: tensor<?x4xf32> {graph.dims = ["N", ""]}, %y: tensor<?xf32> {graph.dims = ["N"]}) {
      func.return
    }""")
    bind_dims(module, {"N": 3})
    assert "%x: tensor<3x4xf32>, %y: tensor<3xf32>" in module_text(make_context(), module)


def test_a_name_that_only_an_op_has_is_refused() -> None:
    module = parsed("""
    func.func @main(%x: tensor<?x4xf32> {graph.dims = ["N", ""]}) -> tensor<?x?x4xf32> {
      %y = graph.expand %x dims ["K", "", ""] : tensor<?x4xf32> -> tensor<?x?x4xf32>
      func.return %y : tensor<?x?x4xf32>
    }""")
    with pytest.raises(UserError, match='no argument has a dimension called "K"'):
        bind_dims(module, {"N": 3})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ('bind-dims{names="M" sizes=2}', 'no symbolic dimension "M"'),
        ('bind-dims{names="NN" sizes=2}', 'did you mean "N"'),
        ('bind-dims{names="N" sizes=0}', '"N" must be at least 1, not 0'),
        ('bind-dims{names="N"}', "1 names and 0 sizes"),
        ('bind-dims{names="N","N" sizes=2,3}', 'the dimension "N" is bound twice, to 2 and to 3'),
    ],
)
def test_the_pass_says_what_is_wrong_with_its_options(spec: str, message: str) -> None:
    module = parsed('func.func @main(%x: tensor<?xf32> {graph.dims = ["N"]}) { func.return }')
    with pytest.raises(UserError) as caught:
        run_passes(make_context(), module, read_pipeline(spec))
    assert message in str(caught.value)


@pytest.mark.parametrize("spec", ["layout", "fold-constants", "graph-fuse", "graph-to-tensor"])
def test_passes_that_need_numbers_say_to_bind_first(spec: str) -> None:
    module = parsed("""
    func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %y = graph.relu %x : tensor<?xf32>
      func.return %y : tensor<?xf32>
    }""")
    with pytest.raises(UserError, match=r"needs shapes that are known, and here is a tensor<\?xf32>") as caught:
        run_passes(make_context(), module, read_pipeline(spec))
    assert "bind-dims" in caught.value.notes[0]


def test_names_that_do_not_fit_the_type_are_refused() -> None:
    module = parsed('func.func @main(%x: tensor<?x4xf32> {graph.dims = ["N", "M"]}) { func.return }')
    with pytest.raises(UserError, match='dimension 1 is called "M", but its size is 4'):
        bind_dims(module, {"N": 2})
