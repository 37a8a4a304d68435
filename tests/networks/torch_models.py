# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch by name, small: what `forward` is called with, and how each builds its layers, is as published."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional


class ResNet(nn.Module):
    """Two stages of basic blocks: He et al., 2016."""

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int):
            super().__init__()
            self.a = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.b = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.norm_a, self.norm_b = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
            is_same = stride == 1 and before == after
            self.short = (
                nn.Identity()
                if is_same
                else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            )

        def forward(self, x: Any) -> Any:
            y = F.relu(self.norm_a(self.a(x)))
            return F.relu(self.norm_b(self.b(y)) + self.short(x))

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(self.Block(8, 8, 1), self.Block(8, 16, 2), self.Block(16, 16, 1))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class MobileNet(nn.Module):
    """Inverted residuals: Sandler et al., 2018."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True))
        self.blocks = nn.ModuleList(self.block(8, stride) for stride in (1, 2))
        self.head = nn.Linear(8, 5)

    def block(self, width: int, stride: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.ReLU6(inplace=True),
            nn.Conv2d(4 * width, 4 * width, 3, stride, 1, groups=4 * width, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.Hardswish(),
            nn.Conv2d(4 * width, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        x = x + self.blocks[0](x)
        return self.head(self.blocks[1](x).mean((2, 3)))


class EfficientNet(nn.Module):
    """Squeeze and excitation with SiLU: Tan and Le, 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12, eps=1e-3), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(12, 12, 5, 1, 2, groups=12, bias=False), nn.BatchNorm2d(12), nn.SiLU())
        self.squeeze, self.excite = nn.Conv2d(12, 3, 1), nn.Conv2d(3, 12, 1)
        self.project = nn.Sequential(nn.Conv2d(12, 12, 1, bias=False), nn.BatchNorm2d(12))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, 7))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        y = self.deep(x)
        gate = torch.sigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return self.head((x + self.project(y * gate)).mean([2, 3]))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any, mask: Any = None, causal: bool = False) -> Any:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int, *, first: bool):
        super().__init__()
        self.first = first
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any, mask: Any = None) -> Any:
        if self.first:
            x = x + self.attention(self.norms[0](x), mask)
            return x + self.mlp(self.norms[1](x))
        x = self.norms[0](x + self.attention(x, mask))
        return self.norms[1](x + self.mlp(x))


class Vit(nn.Module):
    """Dosovitskiy et al., 2021."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 24))
        self.places = nn.Parameter(torch.randn(1, 17, 24))
        self.layers = nn.Sequential(*(Encoder(24, 3, first=True) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 10)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class Swin(nn.Module):
    """Windows of 4 x 4, shifted by 2: Liu et al., 2021."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.attention = Attention(16, 2)
        self.bias = nn.Parameter(torch.randn(49, 2))
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = (at[:, :, None] - at[:, None, :]) + 3
        self.register_buffer("index", apart[0] * 7 + apart[1])
        self.merge = nn.Linear(64, 32, bias=False)

    def windows(self, x: Any) -> Any:
        batch, height, width, channels = x.shape
        x = x.view(batch, height // 4, 4, width // 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, 16, channels)

    def forward(self, x: Any) -> Any:
        batch, height, width, channels = x.shape
        y = torch.roll(self.norm(x), (-2, -2), (1, 2))
        bias = self.bias[self.index.view(-1)].view(16, 16, 2).permute(2, 0, 1)
        y = self.attention(self.windows(y), bias.unsqueeze(0))
        y = y.view(batch, height // 4, width // 4, 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        x = x + torch.roll(y.reshape(x.shape), (2, 2), (1, 2))
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.merge(torch.cat(parts, -1))


class UNet(nn.Module):
    """Ronneberger et al., 2015."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = self.double(1, 8), self.double(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.join, self.head = self.double(16, 8), nn.Conv2d(8, 2, 1)

    def double(self, before: int, after: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU()
        )

    def forward(self, x: Any) -> Any:
        kept = self.down(x)
        y = self.up(self.deep(F.max_pool2d(kept, 2)))
        return F.softmax(self.head(self.join(torch.cat([kept, y], 1))), 1)


class Gpt(nn.Module):
    """A step with a cache of keys and values: Radford et al., 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 24), nn.Embedding(32, 24)
        self.norm_a, self.norm_b = nn.LayerNorm(24), nn.LayerNorm(24)
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)
        self.mlp = nn.Sequential(nn.Linear(24, 96), nn.GELU(approximate="tanh"), nn.Linear(96, 24))

    def forward(self, tokens: Any, keys: Any, values: Any) -> Any:
        past, length = keys.shape[2], tokens.shape[1]
        place = torch.arange(past, past + length)
        x = self.words(tokens) + self.places(place)
        q, k, v = self.qkv(self.norm_a(x)).split(24, -1)
        q, k, v = (each.view(*each.shape[:2], 3, 8).transpose(1, 2) for each in (q, k, v))
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        seen = torch.arange(past + length)[None] <= place[:, None]
        scores = (q @ keys.transpose(-1, -2) / math.sqrt(8)).masked_fill(~seen, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))
        x = x + self.mlp(self.norm_b(x))
        return x @ self.words.weight.t(), keys, values


class Bert(nn.Module):
    """Devlin et al., 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(60, 24), nn.Embedding(16, 24), nn.Embedding(2, 24)
        self.norm = nn.LayerNorm(24, eps=1e-12)
        self.layers = nn.ModuleList(Encoder(24, 4, first=False) for _ in range(2))
        self.pool = nn.Linear(24, 24)

    def forward(self, tokens: Any, kinds: Any, mask: Any) -> Any:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1])) + self.kinds(kinds)
        x = self.norm(x)
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pool(x[:, 0]))


class T5(nn.Module):
    """Root mean squares, buckets of distances, and attention across: Raffel et al., 2020."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.buckets = nn.Embedding(40, 24), nn.Embedding(8, 2)
        self.scales = nn.ParameterList(nn.Parameter(torch.rand(24)) for _ in range(3))
        self.q, self.kv = (nn.ModuleList(nn.Linear(24, size, bias=False) for _ in range(2)) for size in (24, 48))
        self.wide, self.gate, self.narrow = nn.Linear(24, 48), nn.Linear(24, 48), nn.Linear(48, 24)

    def norm(self, x: Any, index: int) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scales[index]

    def attend(self, x: Any, of: Any, index: int, bias: Any = None) -> Any:
        q, (k, v) = self.q[index](x), self.kv[index](of).chunk(2, -1)
        q, k, v = (each.unflatten(-1, (2, 12)).transpose(1, 2) for each in (q, k, v))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        if bias is not None:
            scores = scores + bias
        weights = F.softmax(scores.float(), -1).type_as(scores)
        return torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2)

    def forward(self, source: Any, target: Any) -> Any:
        memory, x = self.words(source), self.words(target)
        place = torch.arange(target.shape[1])
        apart = (place[:, None] - place[None, :]).clamp(min=0)
        far = 2 + (torch.log(apart.float().clamp(min=1) / 2) / math.log(8) * 6).long()
        bucket = torch.where(apart < 2, apart, far.clamp(max=7))
        bias = self.buckets(bucket).permute(2, 0, 1).unsqueeze(0)
        causal = torch.triu(torch.full((len(place), len(place)), -1e9), 1)
        x = x + self.attend(self.norm(x, 0), self.norm(x, 0), 0, bias + causal)
        x = x + self.attend(self.norm(x, 1), memory, 1)
        y = self.norm(x, 2)
        return x + self.narrow(F.gelu(self.gate(y), approximate="tanh") * self.wide(y))


class Recurrent(nn.Module):
    def __init__(self, kind: str, **options: Any):
        super().__init__()
        self.cells, self.head = getattr(nn, kind)(6, 10, batch_first=True, **options), nn.LazyLinear(3)

    def forward(self, x: Any) -> Any:
        y, state = self.cells(x)
        return self.head(y), state


class WaveNet(nn.Module):
    """Gated convolutions of growing dilation: van den Oord et al., 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv1d(4, 12, 1)
        self.gates = nn.ModuleList(nn.Conv1d(12, 24, 2, dilation=2**step) for step in range(3))
        self.rest, self.skip = (nn.ModuleList(nn.Conv1d(12, 12, 1) for _ in range(3)) for _ in range(2))
        self.end = nn.Conv1d(12, 4, 1)

    def forward(self, x: Any) -> Any:
        x, total = self.start(x), 0
        for step, (gate, rest, skip) in enumerate(zip(self.gates, self.rest, self.skip)):
            filtered, gated = gate(F.pad(x, (2**step, 0))).chunk(2, 1)
            y = torch.tanh(filtered) * torch.sigmoid(gated)
            x, total = x + rest(y), total + skip(y)
        return F.log_softmax(self.end(F.relu(total)), 1)


class Dlrm(nn.Module):
    """Bags of embeddings and their products: Naumov et al., 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, dense: Any, sparse: Any) -> Any:
        x = self.bottom(dense)
        rows = torch.stack([x, *(table(sparse[:, i]).sum(1) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        low = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([x, products[:, low[0], low[1]]], 1))


class Mixer(nn.Module):
    """Tolstikhin et al., 2021."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).mT
        x = x + self.tokens(self.norms[0](x).mT).mT
        x = x + self.channels(self.norms[1](x))
        return self.head(self.norms[2](x).mean(1))


class Diffusion(nn.Module):
    """A block of a denoising network: Ho et al., 2020."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.norms = nn.ModuleList(nn.GroupNorm(4, 16) for _ in range(3))
        self.a, self.b = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.shift, self.qkv, self.out = nn.Linear(32, 32), nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)
        self.up = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Any, step: Any) -> Any:
        rates = torch.exp(torch.arange(8) * (-math.log(10000) / 7))
        angles = step[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        scale, shift = self.shift(F.silu(time))[:, :, None, None].chunk(2, 1)
        y = self.a(F.silu(self.norms[0](x)))
        x = x + self.b(F.silu(self.norms[1](y) * (1 + scale) + shift))
        batch, channels, height, width = x.shape
        q, k, v = self.qkv(self.norms[2](x)).reshape(batch, 3, channels, height * width).unbind(1)
        weights = torch.softmax(q.transpose(1, 2) @ k * channels**-0.5, -1)
        x = x + self.out((v @ weights.transpose(1, 2)).reshape(x.shape))
        return self.up(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def _images(size: int, channels: int = 3) -> tuple[Any, ...]:
    return (torch.randn(2, channels, size, size),)


def _tokens(count: int, *shape: int) -> Any:
    return torch.randint(0, count, shape)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]] = {
    "resnet": (ResNet, lambda: _images(32)),
    "mobilenet": (MobileNet, lambda: _images(16)),
    "efficientnet": (EfficientNet, lambda: _images(16)),
    "vit": (Vit, lambda: _images(16)),
    "swin": (Swin, lambda: (torch.randn(2, 8, 8, 16),)),
    "unet": (UNet, lambda: _images(16, 1)),
    "gpt": (Gpt, lambda: (_tokens(50, 2, 3), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8))),
    "bert": (Bert, lambda: (_tokens(60, 2, 9), _tokens(2, 2, 9), (torch.arange(9) < torch.tensor([[9], [6]])).long())),
    "t5": (T5, lambda: (_tokens(40, 2, 7), _tokens(40, 2, 5))),
    "lstm": (lambda: Recurrent("LSTM", num_layers=2), lambda: (torch.randn(2, 5, 6),)),
    "gru": (lambda: Recurrent("GRU", bidirectional=True), lambda: (torch.randn(2, 5, 6),)),
    "wavenet": (WaveNet, lambda: (torch.randn(2, 4, 20),)),
    "dlrm": (Dlrm, lambda: (torch.randn(2, 5), _tokens(20, 2, 3, 4))),
    "mixer": (Mixer, lambda: _images(16)),
    "diffusion": (Diffusion, lambda: (torch.randn(2, 16, 8, 8), torch.tensor([3, 700]))),
}
"""How each is made, and what it is called with, two in a batch."""


def model(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A model in inference mode, and inputs."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    arrays = inputs()
    found = make()
    with torch.no_grad():
        found(*arrays)  # sizes that are lazy are known then
        for module in found.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 2.0)
    return found.eval(), arrays
