# SPDX-License-Identifier: Apache-2.0
"""
Importers of ensembles of trees, all rows and trees at once: a step down is a few gathers, and there is one for each
level of the deepest tree.

Every node asks whether a feature is at most a number. What else nodes may ask is brought to that: the other order
swaps the branches, `<` takes the number before, `=` asks twice, and a set asks for one member after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import f32, f64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.base import require
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.node import OnnxNode, Unsupported, imports
from penstock.lowering.from_onnx.nodes_classical import best_label, labels_of, of_two, second_class, transformed
from penstock.lowering.from_onnx.schema import CLASSICAL
from penstock.passes.graph.terms import Term

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""In the order of their numbers."""

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")

Key = tuple[int, int]
"""A node: its tree and its number, or whether it is a leaf and which."""

MAX_DEPTH = 256
"""Levels of a tree: more of them are a cycle, or would be too many ops."""


@dataclass
class Forest:
    """Trees as one list of nodes, of which each is a question or a leaf."""

    dtype: np.dtype[np.generic]
    """Of the numbers that features are compared with."""
    features: list[int] = field(default_factory=list[int])
    splits: list[float] = field(default_factory=list[float])
    branches: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Where to go if the feature is more than the split, and if it is not; a leaf goes to itself."""
    missing: list[bool] = field(default_factory=list[bool])
    """Whether a NaN goes where a number goes that is at most the split."""
    roots: list[int] = field(default_factory=list[int])

    def leaf(self) -> int:
        """A new leaf."""
        return self.question(0, 0.0, len(self.features), len(self.features), False)

    def question(self, feature: int, split: float, larger: int, other: int, missing: bool) -> int:
        """A new node that asks whether a feature is at most `split`."""
        self.features.append(feature)
        self.splits.append(split)
        self.branches.append((larger, other))
        self.missing.append(missing)
        return len(self.features) - 1

    def ask(self, mode: str, feature: int, split: float, true: int, false: int, missing: bool) -> int:
        """A new node of any mode but that of a set; `missing` says whether a NaN is taken for true."""
        before = float(np.nextafter(self.dtype.type(split), self.dtype.type(-math.inf)))
        match mode:
            case "BRANCH_LEQ":
                return self.question(feature, split, false, true, missing)
            case "BRANCH_LT":
                return self.question(feature, before, false, true, missing)
            case "BRANCH_GT":
                return self.question(feature, split, true, false, not missing)
            case "BRANCH_GTE":
                return self.question(feature, before, true, false, not missing)
            case "BRANCH_EQ":
                return self.question(feature, before, self.question(feature, split, false, true, missing), false, False)
            case "BRANCH_NEQ":
                # A NaN differs from all.
                return self.question(feature, before, self.question(feature, split, true, false, False), true, False)
            case _:
                raise Unsupported(f"nodes of the mode {mode}")

    def reachable(self, root: int) -> list[int]:
        """The leaves of a tree."""
        found, seen = [root], {root}
        for node in found:
            found += (fresh := [child for child in dict.fromkeys(self.branches[node]) if child not in seen])
            seen.update(fresh)
        return [node for node in found if node in self.branches[node]]

    @property
    def depth(self) -> int:
        """The number of questions on the longest way down; raises VerifyException for one that has no end."""
        level, depth = set(self.roots), 0
        while True:
            level = {child for node in level for child in self.branches[node] if child != node}
            if not level:
                return depth
            depth += 1
            require(depth <= MAX_DEPTH, f"a tree has more than {MAX_DEPTH} levels, or a cycle")

    def table(self, targets: int) -> tuple[Array, Array]:
        """Zeros for each node and target, and that there is nothing."""
        shape = len(self.features), targets
        return np.zeros(shape, self.dtype), np.zeros(shape, np.bool_)

    def leaves_of(self, node: OnnxNode) -> Term:
        """The leaf of each row in each tree, (rows, trees)."""
        code, depth = node.code, self.depth
        x = code.input(0, f64 if self.dtype == np.float64 else f32)
        require(len(x.shape) == 2, f"features of {len(x.shape)} dimensions")
        rows, width = x.shape
        require(max(self.features) < width, f"feature {max(self.features)} of {width}")
        tables = {
            "features": np.array(self.features, np.int64),
            "splits": np.array(self.splits, self.dtype),
            "branches": np.array(self.branches, np.int64).ravel(),
        }
        terms = {name: code.constant(table, name) for name, table in tables.items()}
        at = code.constant(np.array([self.roots], np.int64), "roots").expand([rows, len(self.roots)])
        questions = [number for number, (larger, other) in enumerate(self.branches) if larger != other]
        track = None
        if any(self.missing[number] for number in questions):
            track = code.constant(np.array(self.missing, np.bool_), "missing")

        def looked_up(table: Term, index: Term) -> Term:
            return code.emit(graph.GatherOp(table.value, index.value, axis=0))

        for _ in range(depth):
            feature = looked_up(terms["features"], at)
            value = code.emit(graph.GatherElementsOp(x.value, feature.value, axis=1))
            # Neither is a NaN.
            split = looked_up(terms["splits"], at)
            is_less = (value < split) | value.equal(split)
            if track is not None:
                is_less = is_less | value.equal(value).apply("not").apply("and", looked_up(track, at))
            at = looked_up(terms["branches"], at * 2 + is_less.cast(at.element_type))
        return at


@dataclass(frozen=True)
class Question:
    """A node as the attributes have it; its branches are the keys of others."""

    mode: str
    feature: int
    splits: Sequence[float]
    """One, or the members of a set."""
    true: Key
    false: Key
    missing: bool


def _grow(
    forest: Forest, key: Key, read: Callable[[Key], Question | None], places: dict[Key, int], level: int = 0
) -> int:
    """The place of a node, with all that it leads to, in a forest; `read` gives None for a leaf."""
    require(level <= MAX_DEPTH, f"a tree has more than {MAX_DEPTH} levels, or a cycle")
    if key not in places:
        question = read(key)
        if question is None:
            places[key] = forest.leaf()
        else:
            true = _grow(forest, question.true, read, places, level + 1)
            false = _grow(forest, question.false, read, places, level + 1)
            is_set = question.mode == "BRANCH_MEMBER"
            for split in question.splits:
                mode = "BRANCH_EQ" if is_set else question.mode
                false = forest.ask(mode, question.feature, split, true, false, question.missing)
            places[key] = false
    return places[key]


def _numbers(node: OnnxNode, name: str) -> Array:
    """Numbers that are floats, or a tensor, which may be of doubles."""
    tensor = node.tensor(f"{name}_as_tensor")
    return np.array(node.floats(name), np.float32) if tensor is None else tensor.ravel()


def _columns(node: OnnxNode, names: Sequence[str], count: int) -> list[list[int]]:
    columns = [node.ints(name) or [] for name in names]
    for name, column in zip(names, columns, strict=True):
        require(len(column) == count, f"{name} has {len(column)} entries, not {count}")
    return columns


def _number_type(node: OnnxNode) -> np.dtype[np.generic]:
    return np.dtype(np.float64 if node.type(0).element_type == f64 else np.float32)


def _forest(node: OnnxNode, kind: str, targets: int) -> tuple[Forest, Array, Array]:
    """
    The trees in the attributes of the operators before TreeEnsemble; what each of their nodes adds to each target; and
    which of these there is an entry for.
    """
    modes, splits = node.strings("nodes_modes"), _numbers(node, "nodes_values")
    names = [f"nodes_{what}" for what in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")]
    trees, ids, features, true, false = _columns(node, names, len(modes))
    missing = node.ints("nodes_missing_value_tracks_true") or [0] * len(modes)
    require(len(splits) == len(missing) == len(modes) > 0, f"{len(modes)} nodes_modes, {len(splits)} nodes_values")
    keys = list(zip(trees, ids, strict=True))
    rows = {key: row for row, key in enumerate(keys)}
    require(len(rows) == len(keys), "two nodes of a tree have one number")

    def read(key: Key) -> Question | None:
        require(key in rows, f"node {key[1]} of tree {key[0]} is not there")
        row = rows[key]
        if modes[row] == "LEAF":
            return None
        (if_true, if_false), is_missing = ((trees[row], each[row]) for each in (true, false)), bool(missing[row])
        return Question(modes[row], features[row], [float(splits[row])], if_true, if_false, is_missing)

    inner = [row for row, mode in enumerate(modes) if mode != "LEAF"]
    led_to = {(trees[row], each[row]) for row in inner for each in (true, false)}
    forest, places = Forest(_number_type(node)), dict[Key, int]()
    for tree in dict.fromkeys(trees):
        root = next((key for key in keys if key[0] == tree and key not in led_to), None)
        require(root is not None, f"tree {tree} has no root")
        assert root is not None
        forest.roots.append(_grow(forest, root, read, places))
    weights = _numbers(node, f"{kind}_weights")
    of, at, which = _columns(node, [f"{kind}_{what}" for what in ("treeids", "nodeids", "ids")], len(weights))
    table, has = forest.table(targets)
    # A leaf without an entry adds 0 where there is one target, and else has no part in a minimum.
    has[:] = targets == 1
    for tree, number, target, weight in zip(of, at, which, weights.tolist(), strict=True):
        require(0 <= target < targets, f"{kind}_ids has {target}, of {targets}")
        # What is added to a node that is no leaf, or that nothing leads to, is never reached.
        if (place := places.get((tree, number))) is not None:
            table[place, target] += weight
            has[place, target] = True
    return forest, table, has


def _aggregated(node: OnnxNode, forest: Forest, table: Array, has: Array, aggregate: str) -> tuple[Term, Term | None]:
    """
    The scores of each row, (rows, targets): over all trees what their leaves add, and what all rows begin with; and
    where there is one that a leaf speaks of, None for everywhere.
    """
    code, trees = node.code, len(forest.roots)
    require(aggregate in AGGREGATES, f'aggregate_function "{aggregate}" is none of ONNX\'s')
    identity = {"MIN": math.inf, "MAX": -math.inf}.get(aggregate, 0.0)
    weights = code.constant(np.where(has, table, identity).astype(table.dtype), "weights")
    leaves = forest.leaves_of(node)
    each = code.emit(graph.GatherOp(weights.value, leaves.value, axis=0))
    if aggregate in ("MIN", "MAX"):
        reduction = graph.ReduceMinOp if aggregate == "MIN" else graph.ReduceMaxOp
        total = code.emit(reduction(each.value, axes=[1], keepdims=False))
    else:
        total = each.sum([1], keepdims=False)
    total = _with_base(node, total / float(trees) if aggregate == "AVERAGE" else total)
    if all(any(has[forest.reachable(root), target].all() for root in forest.roots) for target in range(has.shape[1])):
        return total, None
    entries = code.constant(has.astype(np.uint8), "entries")
    found = code.emit(graph.GatherOp(entries.value, leaves.value, axis=0))
    return total, code.emit(graph.ReduceMaxOp(found.value, axes=[1], keepdims=False)) > 0


def _regressed(node: OnnxNode, trees: tuple[Forest, Array, Array], aggregate: str, transform: str) -> Term:
    """The scores of a regression: what no leaf speaks of is 0, whatever it begins with; one alone only has a probit."""
    scores, spoken = _aggregated(node, *trees, aggregate)
    if spoken is not None:
        scores = spoken.where(scores, 0.0)
    return scores if scores.shape[1] == 1 and transform != "PROBIT" else transformed(scores, transform, 1)


def _with_base(node: OnnxNode, scores: Term) -> Term:
    """Scores plus what all rows begin with: one number for each, or for all of them."""
    base = _numbers(node, "base_values")
    if base.size == 0:
        return scores
    require(base.size in (1, scores.shape[1]), f"{base.size} base_values for {scores.shape[1]} scores")
    return scores + node.code.constant(base.astype(numpy_dtype(scores.element_type)), "base")


@imports(f"{CLASSICAL}.TreeEnsembleRegressor")
def tree_ensemble_regressor(node: OnnxNode) -> SSAValue:
    targets = node.int("n_targets", 1)
    forest = _forest(node, "target", targets)
    aggregate, transform = node.string("aggregate_function", "SUM"), node.string("post_transform", "NONE")
    return _regressed(node, forest, aggregate, transform).cast(f32).value


@imports(f"{CLASSICAL}.TreeEnsembleClassifier")
def tree_ensemble_classifier(node: OnnxNode) -> list[SSAValue]:
    """
    The label of the largest score, and the scores. Where the leaves of two classes only speak of one, it decides: what
    they add up to is a share of the second, of which half is needed, if no leaf is negative, or else a distance from 0.
    """
    code, labels = node.code, labels_of(node, "classlabels_int64s")
    classes, transform = len(labels), node.string("post_transform", "NONE")
    require(classes > 0, "there are no labels of classes")
    forest, table, has = _forest(node, "class", classes)
    kinds = set(node.ints("class_ids") or [])
    base = _numbers(node, "base_values")
    if classes == 2 and len(kinds) == 1:
        return _of_one_class(node, (forest, table, has), kinds.pop(), labels, base, transform)
    require(base.size in (0, classes), f"{base.size} base_values for {classes} classes")
    scores, spoken = _aggregated(node, forest, table, has, "SUM")
    # A class that no leaf speaks of is none to choose, unless it begins with a score.
    chosen = scores if spoken is None or base.size else spoken.where(scores, -math.inf)
    return [best_label(code, chosen, labels).value, transformed(scores.cast(f32), transform, 1).value]


def _of_one_class(
    node: OnnxNode, trees: tuple[Forest, Array, Array], column: int, labels: Array, base: Array, transform: str
) -> list[SSAValue]:
    """The label and the scores of two classes where the leaves speak of one."""
    code, (forest, table, has) = node.code, trees
    if base.size > (1 if column == 0 else 0):
        raise Unsupported(f"base_values of two classes, of which the leaves only speak of class {column}")
    own = slice(column, column + 1)
    one, _ = _aggregated(node, forest, table[:, own], has[:, own], "SUM")
    is_share = bool((_numbers(node, "class_weights") >= 0).all())
    label = of_two(code, one > (0.5 if is_share else 0.0), labels)
    one = one.cast(f32)
    if column == 0:
        return [label.value, second_class(one, transform, is_share=is_share).value]
    both = code.concat([one * 0.0, one], 1)
    return [label.value, transformed(both, transform, 1).value]


@imports(f"{CLASSICAL}.TreeEnsemble")
def tree_ensemble(node: OnnxNode) -> SSAValue:
    """The operator that took the place of both: questions and leaves apart, modes by number."""
    modes, splits, weights = (node.tensor(name) for name in ("nodes_modes", "nodes_splits", "leaf_weights"))
    require(modes is not None and splits is not None and weights is not None, "it has no nodes or no leaves")
    assert modes is not None
    assert splits is not None
    assert weights is not None
    count, targets, leaves = len(modes), node.int("n_targets", 1), node.ints("leaf_targetids") or []
    names = [f"nodes_{what}" for what in ("featureids", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")]
    features, true, is_true_leaf, false, is_false_leaf = _columns(node, names, count)
    missing = node.ints("nodes_missing_value_tracks_true") or [0] * count
    require(len(splits) == count == len(missing) and len(leaves) == len(weights), "attributes of different lengths")
    members = _members(node, modes.tolist())

    def read(key: Key) -> Question | None:
        is_leaf, row = key
        require(0 <= row < (len(leaves) if is_leaf else count), f"{'leaf' if is_leaf else 'node'} {row} is not there")
        if is_leaf:
            return None
        mode = int(modes[row])
        require(0 <= mode < len(MODES), f"nodes_modes has {mode}")
        asked = members[row] if MODES[mode] == "BRANCH_MEMBER" else [float(splits[row])]
        branches = (is_true_leaf[row], true[row]), (is_false_leaf[row], false[row])
        return Question(MODES[mode], features[row], asked, *branches, bool(missing[row]))

    forest, places = Forest(_number_type(node)), dict[Key, int]()
    for root in node.ints("tree_roots") or []:
        forest.roots.append(_grow(forest, (0, root), read, places))
    require(len(forest.roots) > 0, "there are no trees")
    table, has = forest.table(targets)
    has[:] = targets == 1
    for leaf, (target, weight) in enumerate(zip(leaves, weights.tolist(), strict=True)):
        require(0 <= target < targets, f"leaf_targetids has {target}, of {targets}")
        if (place := places.get((1, leaf))) is not None:
            table[place, target] += weight
            has[place, target] = True
    aggregate, transform = node.int("aggregate_function", 1), node.int("post_transform", 0)
    require(0 <= aggregate < len(AGGREGATES), f"aggregate_function {aggregate}")
    require(0 <= transform < len(TRANSFORMS), f"post_transform {transform}")
    scores = _regressed(node, (forest, table, has), AGGREGATES[aggregate], TRANSFORMS[transform])
    return scores.cast(node.type(0).element_type).value


def _members(node: OnnxNode, modes: Sequence[int]) -> dict[int, list[float]]:
    """The members of the sets that nodes ask for: a NaN ends each set but perhaps the last."""
    values = node.tensor("membership_values")
    sets: list[list[float]] = [[]]
    for number in [] if values is None else values.ravel().tolist():
        if math.isnan(number):
            sets.append([])
        else:
            sets[-1].append(number)
    rows = [row for row, mode in enumerate(modes) if mode == MODES.index("BRANCH_MEMBER")]
    require(len(rows) <= len(sets), f"{len(rows)} nodes ask for {len(sets)} sets")
    return dict(zip(rows, sets, strict=False))
