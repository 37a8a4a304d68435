# SPDX-License-Identifier: Apache-2.0
"""The fusion algorithm on tiny graphs: each rule of TVM's partitioner, and why a group ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.graph.fusion.groups import FusionNode, Group, Kind, Rule, Use, Veto, fusion_groups

KINDS = {
    "elementwise": Kind.ELEMENTWISE,
    "broadcast": Kind.BROADCAST,
    "injective": Kind.INJECTIVE,
    "reduction": Kind.REDUCTION,
    "conv": Kind.COMPLEX_OUT_FUSABLE,
    "tuple": Kind.TUPLE,
    "opaque": Kind.OPAQUE,
}


def nodes_of(program: str) -> tuple[list[str], list[FusionNode]]:
    """
    The nodes of a program of lines `name = kind operand ...`, and their names.

    An operand that is no node is a weight; one with a star is repeated (broadcast), the others have the shape of the
    result. A name with a bang is read outside as well; the last one always is.
    """
    lines = [line.split() for line in program.strip().splitlines()]
    names = [line[0].removesuffix("!") for line in lines]
    uses: dict[str, list[Use]] = {name: [] for name in names}
    reads: list[tuple[str, ...]] = []
    for index, (_, _, word, *operands) in enumerate(lines):
        kind = KINDS[word]
        for operand in operands:
            if (name := operand.removesuffix("*")) in uses:
                seen = {Kind.TUPLE: Kind.INJECTIVE, Kind.BROADCAST: Kind.ELEMENTWISE}.get(kind, kind)
                uses[name].append(Use(index, Kind.BROADCAST if operand.endswith("*") else seen))
        reads.append(tuple(operand for operand in operands if operand.removesuffix("*") not in uses))
    escapes = [line[0].endswith("!") or line is lines[-1] for line in lines]
    return names, [
        FusionNode(KINDS[line[2]], tuple(uses[name]), escaping, read)
        for line, name, escaping, read in zip(lines, names, escapes, reads, strict=True)
    ]


class Found:
    """The groups of a program, by names."""

    def __init__(self, program: str, *, max_ops: int = 256, max_arguments: int | None = None, veto: Veto | None = None):
        self.names, nodes = nodes_of(program)
        self.groups: list[Group] = fusion_groups(nodes, max_ops=max_ops, max_arguments=max_arguments, veto=veto)

    @property
    def text(self) -> str:
        """The members of each group."""
        return " | ".join(" ".join(self.names[index] for index in group.members) for group in self.groups)

    def stop(self, name: str) -> tuple[Rule, str | None, str | None]:
        """Why the group with a node ends where it does: the rule, toward which node, and which one is in the way."""
        (group,) = (group for group in self.groups if self.names.index(name) in group.members)
        toward, blocker = (None if n is None else self.names[n] for n in (group.stop.toward, group.stop.blocker))
        return group.stop.rule, toward, blocker


def test_injective_operators_form_one_group() -> None:
    assert Found("a = elementwise x\nb = injective a\nc = broadcast b\nd = injective c").text == "a b c d"


def test_what_is_read_outside_ends_its_group() -> None:
    found = Found("a = elementwise x\nb! = elementwise a\nc = elementwise b")
    assert found.text == "a b | c"
    assert found.stop("b") == (Rule.ESCAPES, None, None)


def test_a_contraction_takes_elementwise_operators_on_its_output_only() -> None:
    found = Found("a = elementwise x\nb = conv a w\nc = broadcast b bias*\nd = elementwise c")
    assert found.text == "a | b c d"
    assert found.stop("a") == (Rule.EDGE, "b", "b")


@pytest.mark.parametrize("follower", ["injective b", "broadcast b*", "reduction b", "conv b"])
def test_a_contraction_takes_nothing_that_reads_its_result_otherwise(follower: str) -> None:
    found = Found(f"b = conv x w\nc = {follower}\nd = elementwise c")
    assert found.stop("b") == (Rule.EDGE, "c", "c")
    assert found.text.startswith("b | c")


def test_a_reduction_takes_elementwise_and_broadcasting_operators_before_it_and_none_after_it() -> None:
    found = Found("a = broadcast x y*\nb = elementwise a\nc = reduction b\nd = elementwise c")
    assert found.text == "a b c | d"
    assert found.stop("c") == (Rule.REDUCTION, "d", None)


def test_a_reduction_does_not_take_an_injective_operator() -> None:
    found = Found("a = injective x\nb = reduction a")
    assert found.text == "a | b"
    assert found.stop("a") == (Rule.PATH, "b", "b")


def test_an_opaque_operator_stands_alone() -> None:
    found = Found("a = elementwise x\nb = opaque a\nc = elementwise b")
    assert found.text == "a | b | c"
    assert (found.stop("a"), found.stop("b")) == ((Rule.EDGE, "b", "b"), (Rule.OPAQUE, None, None))


def test_two_contractions_never_merge_and_the_earlier_one_takes_what_follows_both() -> None:
    found = Found("a = conv x w\nb = conv x w\nc = broadcast a b\nd = elementwise c")
    assert found.text == "b | a c d"
    assert found.stop("b") == (Rule.ANCHORS, "c", "c")


def test_a_contraction_and_a_reduction_never_merge() -> None:
    found = Found("a = conv x w\nb = elementwise a\nc = reduction b")
    assert found.text == "a b | c"
    assert found.stop("b")[0] == Rule.EDGE


def test_a_diamond_of_elementwise_operators_goes_as_a_whole() -> None:
    assert Found("a = conv x w\nb = elementwise a\nc = elementwise a\nd = broadcast b c").text == "a b c d"


def test_nested_diamonds_go_as_a_whole() -> None:
    program = (
        "a = conv x w\nb = elementwise a\nc = elementwise b\nd = elementwise b\ne = broadcast c d\nf = broadcast a e"
    )
    assert Found(program).text == "a b c d e f"


def test_a_diamond_with_one_arm_that_takes_no_part_does_not_go_at_all() -> None:
    found = Found("a = elementwise x\nb = elementwise a\nc = opaque a\nd = broadcast b c")
    assert found.text == "a | c | b d"
    assert found.stop("a") == (Rule.EDGE, "d", "c")


def test_an_arm_over_a_reduction_keeps_what_it_normalises_apart() -> None:
    found = Found("a = elementwise x\nm = reduction a\ns = broadcast a m*\nt = elementwise s")
    assert found.text == "a | m | s t"
    assert found.stop("a") == (Rule.PATH, "s", "m")


def test_the_arm_of_a_diamond_may_be_injective_where_it_begins_with_an_elementwise_operator() -> None:
    assert Found("a = elementwise x\nb = injective a\nc = elementwise a\nd = broadcast b c").text == "a b c d"


def test_a_contraction_does_not_take_a_diamond_with_an_injective_arm() -> None:
    found = Found("a = conv x w\nb = injective a\nc = elementwise a\nd = broadcast b c")
    assert found.stop("a") == (Rule.EDGE, "d", "b")
    assert found.text == "a | b c d"


def test_several_users_that_never_meet_end_the_group() -> None:
    found = Found("a = elementwise x\nb! = elementwise a\nc = elementwise a")
    assert found.text == "a | b | c"
    assert found.stop("a") == (Rule.NO_JOIN, None, None)


def test_an_elementwise_operator_joins_the_epilogue_of_a_contraction() -> None:
    # As what is added to a convolution's result.
    assert Found("r = elementwise y\na = conv x w\nb = broadcast a r\nc = elementwise b").text == "r a b c"


def test_injective_operators_wait_until_contractions_have_finished() -> None:
    # In the first phase `t` would have joined `b`, and the contraction would have been left alone.
    found = Found("t = injective y\na = conv x w\nb = broadcast a t")
    assert found.text == "t | a b"
    assert found.stop("t") == (Rule.PATH, "b", "b")


def test_an_injective_operator_goes_on_in_the_second_phase() -> None:
    assert Found("a = injective x\nb = elementwise a").text == "a b"


def test_what_is_concatenated_joins_when_the_concatenation_goes_on_element_by_element() -> None:
    program = "a = elementwise x\nb = injective y\nt = tuple a b\nc = injective t\nd = elementwise c"
    assert Found(program).text == "a b t c d"


def test_a_contraction_does_not_join_what_it_is_concatenated_with() -> None:
    found = Found("a = conv x w\nb = elementwise y\nt = tuple a b\nc = injective t\nd = elementwise c")
    assert found.text == "a | b t c d"
    assert found.stop("a") == (Rule.TUPLE, "t", None)


def test_nothing_joins_a_concatenation_that_is_split_from_its_tuple() -> None:
    found = Found("a = elementwise x\nt! = tuple a y\nc = opaque t")
    assert found.text == "a | t | c"
    assert found.stop("a") == (Rule.TUPLE, "t", None)


def test_a_group_has_at_most_so_many_operators() -> None:
    chain = "\n".join(f"n{i + 1} = elementwise n{i}" for i in range(300))
    sizes = [len(group.members) for group in Found(chain).groups]
    assert sizes == [256, 44]
    found = Found("a = elementwise x\nb = elementwise a\nc = elementwise b", max_ops=2)
    assert found.text == "a b | c"
    assert found.stop("a") == (Rule.TOO_MANY_OPS, "c", None)


def test_a_diamond_counts_all_of_its_operators() -> None:
    program = "a = elementwise x\nb = elementwise a\nc = elementwise a\nd = broadcast b c"
    assert Found(program, max_ops=3).text == "a | b c d"
    assert Found(program, max_ops=4).text == "a b c d"


def test_a_group_has_at_most_so_many_arguments() -> None:
    program = "a = broadcast x w1\nb = broadcast a w2\nc = broadcast b w3"
    assert Found(program, max_arguments=4).text == "a b c"
    found = Found(program, max_arguments=3)
    assert found.text == "a b | c"
    assert found.stop("b") == (Rule.TOO_MANY_ARGUMENTS, "c", None)


def test_an_argument_that_is_read_twice_counts_once() -> None:
    assert Found("a = broadcast x w\nb = broadcast a w", max_arguments=2).text == "a b"


def test_a_strategy_may_refuse_a_merge_and_is_asked_with_the_parts() -> None:
    asked: list[list[list[int]]] = []

    def veto(merged: object, parts: object) -> str | None:
        asked.append([list(part) for part in parts])  # pyright: ignore
        return "too dear" if len(asked) == 1 else None

    found = Found("a = conv x w\nb = elementwise a\nc = elementwise b", veto=veto)
    assert asked[:2] == [[[0], [1]], [[1], [2]]]
    assert found.text == "a | b c"
    (first, _) = found.groups
    assert (first.stop.rule, first.stop.words) == (Rule.VETO, "too dear")


@st.composite
def random_programs(draw: st.DrawFn) -> str:
    """Programs of any shape."""
    lines: list[str] = []
    for index in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from([word for word in KINDS if word != "tuple"]))
        known = [f"n{i}" for i in range(index)]
        operands = [draw(st.sampled_from([*known, "x"])) for _ in range(draw(st.integers(1, 2)))]
        stars = [draw(st.sampled_from(["", "*"])) if kind == "broadcast" else "" for _ in operands]
        name = f"n{index}" + draw(st.sampled_from(["", "", "", "!"]))
        lines.append(f"{name} = {kind} " + " ".join(map("".join, zip(operands, stars, strict=True))))
    return "\n".join(lines)


@examples(200)
@given(random_programs())
def test_each_group_has_one_result_one_anchor_and_all_paths_between_its_nodes(program: str) -> None:
    names, nodes = nodes_of(program)
    groups = fusion_groups(nodes)
    assert sorted(index for group in groups for index in group.members) == list(range(len(nodes)))
    reach = np.zeros((len(nodes), len(nodes)), bool)
    for index in reversed(range(len(nodes))):
        for use in nodes[index].uses:
            reach[index] |= reach[use.consumer]
            reach[index, use.consumer] = True
    for group in groups:
        inside = set(group.members)
        root = max(inside)
        for index in inside - {root}:
            assert not nodes[index].escapes
            assert {use.consumer for use in nodes[index].uses} <= inside, names[index]
        between = {n for n in range(len(nodes)) for a in inside if reach[a, n] and reach[n, root]}
        assert between <= inside
        hard = [nodes[n].kind for n in inside if nodes[n].kind > Kind.INJECTIVE]
        assert len(hard) <= 1
        assert Kind.OPAQUE not in hard or len(inside) == 1
