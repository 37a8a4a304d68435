# SPDX-License-Identifier: Apache-2.0
"""
Importers of classical machine learning, the domain `ai.onnx.ml`, on numbers: there are no tensors of strings.

What ONNX leaves open (a classifier of two classes with scores of one, the order of ties) is as onnxruntime has it. See
https://onnx.ai/onnx/operators/#ai-onnx-ml.
"""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import f32, f64, i64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.base import is_float, require
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.forms import refused
from penstock.lowering.from_onnx.node import NodeCode, OnnxNode, Unsupported, imports
from penstock.lowering.from_onnx.nodes_indexing import first_index
from penstock.lowering.from_onnx.schema import CLASSICAL
from penstock.passes.graph.terms import Term

# Features.


def _floats(node: OnnxNode, name: str, width: int) -> Array:
    """An attribute with one number for each feature, or one for all of them."""
    numbers = np.array(node.floats(name), np.float32)
    require(len(numbers) in (1, width), f"{name} has {len(numbers)} numbers for {width} features")
    return numbers


@imports(f"{CLASSICAL}.Scaler")
def scaler(node: OnnxNode) -> SSAValue:
    """(x - offset) * scale, as f32."""
    x, width = node.code.input(0, f32), node.shape(0)[-1]
    offset, scale = (node.code.constant(_floats(node, name, width), name) for name in ("offset", "scale"))
    return ((x - offset) * scale).value


@imports(f"{CLASSICAL}.Normalizer")
def normalizer(node: OnnxNode) -> SSAValue:
    """Each row divided by its largest element, the sum of its sizes, or the root of the sum of its squares."""
    x, norm = node.code.input(0, f32), node.string("norm", "MAX")
    axis = len(x.shape) - 1
    require(norm in ("MAX", "L1", "L2"), f'norm is MAX, L1 or L2, not "{norm}"')
    if norm == "MAX":
        size = node.code.emit(graph.ReduceMaxOp(x.value, axes=[axis]))
    else:
        size = abs(x).sum([axis]) if norm == "L1" else (x * x).sum([axis]).apply("sqrt")
    return (x / size.equal(0.0).where(1.0, size)).value


@imports(f"{CLASSICAL}.Binarizer")
def binarizer(node: OnnxNode) -> SSAValue:
    x = node.code.input(0)
    return (x > node.float("threshold", 0.0)).cast(x.element_type).value


@imports(f"{CLASSICAL}.Imputer")
def imputer(node: OnnxNode) -> SSAValue:
    """One value, which may be NaN, replaced by one for each feature, or for all of them."""
    x, code = node.code.input(0), node.code
    real = is_float(x.element_type)
    numbers = node.floats("imputed_value_floats") if real else node.ints("imputed_value_int64s") or []
    require(len(numbers) in (1, x.shape[-1]), f"{len(numbers)} imputed values for {x.shape[-1]} features")
    replaced = node.float("replaced_value_float", 0.0) if real else node.int("replaced_value_int64", 0)
    missing = x.equal(x).apply("not") if math.isnan(replaced) else x.equal(replaced)
    return missing.where(code.constant(np.array(numbers), "imputed", x.element_type), x).value


@imports(f"{CLASSICAL}.FeatureVectorizer")
def feature_vectorizer(node: OnnxNode) -> SSAValue:
    """The first columns of several tables side by side, as f32."""
    widths = node.ints("inputdimensions") or []
    require(len(widths) == len(node.inputs), f"{len(widths)} inputdimensions for {len(node.inputs)} inputs")
    parts: list[Term] = []
    for index, width in enumerate(widths):
        x = node.code.input(index, f32)
        rows = x.reshape([1, *x.shape]) if len(x.shape) == 1 else x
        require(rows.shape[1] >= width, f"{width} columns of {rows.shape[1]}")
        parts.append(rows.cut(1, 0, width))
    return node.code.concat(parts, 1).value


@imports(f"{CLASSICAL}.ArrayFeatureExtractor")
def array_feature_extractor(node: OnnxNode) -> SSAValue:
    """Elements along the last dimension; of a vector they become a row."""
    x, index = node.code.input(0), node.code.input(1, i64)
    found = graph.GatherOp(x.value, index.reshape([math.prod(index.shape)]).value, axis=len(x.shape) - 1)
    y = node.code.emit(found)
    return (y.reshape([1, *y.shape]) if len(x.shape) == 1 else y).value


# Categories.


def _matches(code: NodeCode, x: Term, keys: Array) -> Term:
    """Which of the keys each element is, along a new last dimension; a NaN is one too."""
    table = code.constant(keys, "keys", x.element_type)
    apart = x.reshape([*x.shape, 1])
    found = apart.equal(table)
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        found = found | (apart.equal(apart).apply("not").apply("and", code.constant(np.isnan(keys), "missing")))
    return found


@imports(f"{CLASSICAL}.OneHotEncoder")
def one_hot_encoder(node: OnnxNode) -> SSAValue:
    """1 for the category that an element is; none for another element."""
    if node.strings("cats_strings"):
        raise Unsupported("categories that are strings")
    if not node.flag("zeros", True):
        raise Unsupported("zeros=0, an error for an element of no category: results do not depend on the data")
    categories = np.array(node.ints("cats_int64s") or [], np.int64)
    require(categories.size > 0, "there are no categories")
    return _matches(node.code, node.code.input(0, i64), categories).cast(f32).value


def _mapping(node: OnnxNode, what: str) -> tuple[Array, Array]:
    """The keys or the values of a LabelEncoder, in any of the attributes for them, and the default of that type."""
    if node.strings(f"{what}_strings"):
        raise Unsupported(f"{what} that are strings")
    if (table := node.tensor(f"{what}_tensor")) is not None:
        given = node.tensor("default_tensor")
        zero = -1 if table.dtype.kind == "i" else -0.0
        return table, np.asarray(zero if given is None else given.ravel()[0], table.dtype)
    if numbers := node.ints(f"{what}_int64s"):
        return np.array(numbers, np.int64), np.array(node.int("default_int64", -1), np.int64)
    numbers = np.array(node.floats(f"{what}_floats"), np.float32)
    require(numbers.size > 0, f"there are no {what}")
    return numbers, np.array(node.float("default_float", -0.0), np.float32)


@imports(f"{CLASSICAL}.LabelEncoder")
def label_encoder(node: OnnxNode) -> SSAValue:
    """The value at the key that an element is, or a default."""
    code, x = node.code, node.code.input(0)
    if node.strings("classes_strings"):
        raise Unsupported("classes that are strings")
    (keys, _), (values, default) = (_mapping(node, what) for what in ("keys", "values"))
    require(keys.size == values.size, f"{keys.size} keys and {values.size} values")
    require(keys.dtype == numpy_dtype(x.element_type), f"keys of type {keys.dtype} for elements of {x.element_type}")
    rank = len(x.shape)
    found = _matches(code, x, keys.ravel())
    index = first_index(found, code.positions(keys.size, rank, rank + 1), rank, keys.size, keep=False)
    table = code.constant(np.append(values.ravel(), default), "values")
    return node.emit(graph.GatherOp(table.value, index.value, axis=0))


# Scores.


def transformed(scores: Term, transform: str, axis: int) -> Term:
    """Scores along an axis behind what an attribute `post_transform` names."""
    if transform in ("", "NONE"):
        return scores
    if transform == "LOGISTIC":
        return scores.apply("sigmoid")
    if transform == "SOFTMAX":
        return scores.emit(graph.SoftmaxOp(scores.value, axis=axis))
    if transform == "PROBIT":
        return _probit(scores)
    require(transform == "SOFTMAX_ZERO", f'post_transform "{transform}" is none of ONNX\'s')
    # What is 0 stays so, and has no share in the sum.
    largest = scores.emit(graph.ReduceMaxOp(scores.value, axes=[axis]))
    power = (abs(scores) > 1e-7).where((scores - largest).apply("exp"), 0.0)
    total = power.sum([axis])
    return power / total.equal(0.0).where(1.0, total)


def _probit(share: Term) -> Term:
    """
    Where the normal distribution function has a value, by an approximation of the inverse error function.

    Winitzki, "A handy approximation for the error function and its inverse", 2008.
    """
    x, a = share * 2.0 - 1.0, 0.147
    log = ((1.0 - x) * (1.0 + x)).apply("log")
    half = log * 0.5 + 2 / (3.14159 * a)
    root = ((half * half - log * (1 / a)).apply("sqrt") - half).apply("sqrt")
    return (x < 0.0).where(-root, root) * math.sqrt(2)


def labels_of(node: OnnxNode, ints: str) -> Array:
    """The labels of classes as integers; raises Unsupported where strings are asked for, their numbers if not."""
    words = node.strings("classlabels_strings")
    if not words:
        return np.array(node.ints(ints) or [], np.int64)
    if node.used_outputs[0]:
        raise Unsupported("labels that are strings: only its scores, the second output, are numbers")
    return np.arange(len(words), dtype=np.int64)


def best_label(code: NodeCode, scores: Term, labels: Array) -> Term:
    """The label of the first of the largest scores of each row."""
    classes = scores.shape[1]
    largest = scores.equal(scores.emit(graph.ReduceMaxOp(scores.value, axes=[1])))
    index = first_index(largest, code.positions(classes, 1, 2), 1, classes, keep=False)
    if np.array_equal(labels, np.arange(classes)):
        return index
    table = code.constant(labels, "labels")
    return code.emit(graph.GatherOp(table.value, index.value, axis=0))


def of_two(code: NodeCode, is_second: Term, labels: Array) -> Term:
    """The label of each row: the second where that holds."""
    first, second = (code.constant(np.asarray(each), "label") for each in labels)
    return is_second.reshape([is_second.shape[0]]).where(second, first)


# Linear models.


def _matrix(node: OnnxNode) -> tuple[Term, Term]:
    """Rows of features, as floats, and one of coefficients for each score."""
    x = node.code.input(0, None if node.type(0).element_type == f64 else f32)
    rows = x.reshape([1, *x.shape]) if len(x.shape) == 1 else x
    numbers = np.array(node.floats("coefficients"), np.float32)
    width = rows.shape[1]
    require(numbers.size % width == 0 and numbers.size > 0, f"{numbers.size} coefficients for {width} features")
    return rows.cast(f32), node.code.constant(np.ascontiguousarray(numbers.reshape(-1, width).T), "coefficients")


def _intercepted(node: OnnxNode, scores: Term) -> Term:
    numbers = np.array(node.floats("intercepts"), np.float32)
    if numbers.size == 0:
        return scores
    require(numbers.size == scores.shape[1], f"{numbers.size} intercepts for {scores.shape[1]} scores")
    return scores + node.code.constant(numbers, "intercepts")


@imports(f"{CLASSICAL}.LinearRegressor")
def linear_regressor(node: OnnxNode) -> SSAValue:
    x, matrix = _matrix(node)
    require(
        matrix.shape[1] == node.int("targets", 1), f"{node.int('targets', 1)} targets, {matrix.shape[1]} of numbers"
    )
    scores = _intercepted(node, x @ matrix)
    return transformed(scores, node.string("post_transform", "NONE"), 1).value


@imports(f"{CLASSICAL}.LinearClassifier")
def linear_classifier(node: OnnxNode) -> list[SSAValue]:
    """The label of the largest score, and the scores; of two classes there may be the score of the second alone."""
    code = node.code
    x, matrix = _matrix(node)
    scores, labels = _intercepted(node, x @ matrix), labels_of(node, "classlabels_ints")
    transform = node.string("post_transform", "NONE")
    if scores.shape[1] == 1 and len(labels) == 2:
        label = of_two(code, scores > 0.0, labels)
        return [label.value, second_class(scores, transform, is_share=True).value]
    require(len(labels) == scores.shape[1], f"{len(labels)} labels for {scores.shape[1]} scores")
    return [best_label(code, scores, labels).value, transformed(scores, transform, 1).value]


def second_class(scores: Term, transform: str, *, is_share: bool) -> Term:
    """The scores of two classes out of that of the second, which is a share, or a distance from 0."""
    if transform == "PROBIT":
        raise Unsupported("PROBIT of two classes with the score of one")
    if transform == "LOGISTIC":
        both = [(-scores).apply("sigmoid"), scores.apply("sigmoid")]
    elif is_share:
        both = [1.0 - scores, scores]
    else:
        both = [-scores, scores]
    return scores.emit(graph.ConcatOp([each.value for each in both], axis=1))


# What there is not.

refused(
    "ZipMap",
    "a list of dictionaries: its input is the tensor of scores; skl2onnx leaves ZipMap out with "
    "options={'zipmap': False}",
    CLASSICAL,
)
refused("CategoryMapper", "tensors of strings", CLASSICAL)
refused("DictVectorizer", "dictionaries", CLASSICAL)
refused("CastMap", "dictionaries", CLASSICAL)
refused("SVMClassifier", "support vectors that vote", CLASSICAL)
refused("SVMRegressor", "support vectors", CLASSICAL)
