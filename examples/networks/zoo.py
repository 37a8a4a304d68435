# SPDX-License-Identifier: Apache-2.0
"""
Every network of this folder by name, at full size and at a size for quick tests.

    model = NETWORKS["mobilenet_v2"](seed=0, small=True)
    feeds = inputs(model, seed=1)

Nothing is downloaded and nothing is executed: weights are drawn from the seed, and the same (name, seed, small)
gives the same model, byte for byte. `small=True` keeps every operator of the full network and the way its values
flow, and shrinks extents only: a tenth to a hundredth of the work. (Where a published network ends in an average
pool over the whole map, the smaller one has a global average pool.)
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper

if str(Path(__file__).parent) not in sys.path:
    # A program that loads this file by its path gets its neighbours too.
    sys.path.insert(0, str(Path(__file__).parent))

import light
from bert import bert
from inception import inception_v3, inception_v4
from int8_cnn import int8_cnn
from lstm import lstm
from mobilenet import mobilenet_v1, mobilenet_v2
from resnet18_int8 import resnet18_int8
from resnext import resnext50
from ssd import ssd300

Array = NDArray[Any]


class NetworkBuilder(Protocol):
    """Builds one network."""

    def __call__(self, seed: int = 0, small: bool = False) -> ModelProto:
        """The network with weights drawn from `seed`; reduced if `small`."""
        ...


LIGHT_SMALL = {
    "bvlc_alexnet": 67,
    "densenet121": 64,
    "inception_v1": 64,
    "inception_v2": 64,
    "resnet50": 64,
    "shufflenet": 64,
    "squeezenet": 64,
    "vgg19": 32,
    "zfnet512": 79,
}
"""The published networks, and the extent of the smaller image."""


def _light(name: str, seed: int = 0, small: bool = False) -> ModelProto:
    return light.light_model(name, seed, LIGHT_SMALL[name] if small else None)


def _mobilenet_v1(seed: int = 0, small: bool = False) -> ModelProto:
    return mobilenet_v1(seed, 64, 0.25) if small else mobilenet_v1(seed)


def _mobilenet_v2(seed: int = 0, small: bool = False) -> ModelProto:
    return mobilenet_v2(seed, 64, 0.5) if small else mobilenet_v2(seed)


def _inception_v3(seed: int = 0, small: bool = False) -> ModelProto:
    return inception_v3(seed, 75, 0.125) if small else inception_v3(seed)


def _inception_v4(seed: int = 0, small: bool = False) -> ModelProto:
    return inception_v4(seed, 75, 0.125) if small else inception_v4(seed)


def _resnext50(seed: int = 0, small: bool = False) -> ModelProto:
    return resnext50(seed, 64, 0.25) if small else resnext50(seed)


def _ssd300(seed: int = 0, small: bool = False) -> ModelProto:
    return ssd300(seed, 0.125) if small else ssd300(seed)


def _bert_layer(seed: int = 0, small: bool = False) -> ModelProto:
    return bert(seed, sequence=16, hidden=96, heads=4, feed_forward=384) if small else bert(seed)


def _lstm(seed: int = 0, small: bool = False) -> ModelProto:
    return lstm(seed, sequence=6, features=20, hidden=24) if small else lstm(seed)


def _int8_cnn(seed: int = 0, small: bool = False) -> ModelProto:
    return int8_cnn(seed, 8 if small else 32)


def _resnet18_int8(seed: int = 0, small: bool = False) -> ModelProto:
    return resnet18_int8(seed, 32, 16, 10) if small else resnet18_int8(seed)


NETWORKS: dict[str, NetworkBuilder] = {
    **{name: functools.partial(_light, name) for name in light.LIGHT_MODELS},
    "mobilenet_v1": _mobilenet_v1,
    "mobilenet_v2": _mobilenet_v2,
    "inception_v3": _inception_v3,
    "inception_v4": _inception_v4,
    "resnext50": _resnext50,
    "ssd300": _ssd300,
    "bert_layer": _bert_layer,
    "lstm": _lstm,
    "int8_cnn": _int8_cnn,
    "resnet18_int8": _resnet18_int8,
}
"""The builder of each network."""

MASKED = -50.0
"""Added to the scores of the tokens that attention must not see. Exporters write the lowest number of the type: by
the largest value of such a tensor, no difference of scores could be told from rounding."""


def inputs(model: ModelProto, seed: int, dims: Mapping[str, int] | None = None) -> dict[str, Array]:
    """
    Arrays for the inputs of `model`, by name: standard normal; for an attention mask, the last quarter masked.

    `dims` gives sizes to symbolic dimensions, 1 where it gives none.
    """
    rng = np.random.default_rng(seed)
    sizes = dims or {}
    arrays: dict[str, Array] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [sizes.get(dim.dim_param, 1) if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        if "mask" in value.name:
            array = np.zeros(shape, np.float32)
            array[..., shape[-1] - shape[-1] // 4 :] = MASKED
        else:
            array = rng.standard_normal(shape, dtype=np.float32)
        arrays[value.name] = array.astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type), copy=False)
    return arrays
