# SPDX-License-Identifier: Apache-2.0
"""
Families without a known optimum: random rectangles, programs as their shapes are drawn, and what machines ask for.

A planner may be tuned to one family without anyone's noticing, so these differ in what makes them hard: how many
buffers meet, how sizes and durations are spread, whether lifetimes are nested (training), chained (inference) or
periodic (pipelined loops), and which of the constraints of real scratchpads they carry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp
from random import Random

from benchmarks.instances.instance import Instance
from penstock.passes.planning.problem import Buffer, Problem, peak

GRANULE = 64


def _granules(size: float) -> int:
    """A size in bytes, at least and in multiples of one granule."""
    return max(1, round(size / GRANULE)) * GRANULE


def _buffer(number: int, lower: int, upper: int, size: int, alignment: int = 1) -> Buffer:
    return Buffer(str(number), ((lower, upper),), size, alignment)


def _random_buffers(count: int, density: float, random: Random, *, even: bool) -> tuple[Buffer, ...]:
    """
    Buffers of which any two meet with a probability of about `density`.

    Durations are exponential about a mean, or all near it when `even`; sizes spread over three orders of
    magnitude, or over one.
    """
    length = 4 * count
    mean = density * length / 2
    buffers: list[Buffer] = []
    for number in range(count):
        duration = random.uniform(0.5, 1.5) * mean if even else random.expovariate(1 / mean)
        duration = min(max(1, round(duration)), length)
        lower = random.randrange(length - duration + 1)
        size = random.uniform(1, 10) * 1024 if even else exp(random.gauss(0, 1.3)) * 4096
        buffers.append(_buffer(number, lower, lower + duration, _granules(size)))
    return tuple(buffers)


def rectangles(quick: bool) -> Iterator[Instance]:
    """Random rectangles of four densities and two kinds."""
    for count in (80,) if quick else (80, 200, 400):
        for density in (0.05, 0.6) if quick else (0.05, 0.15, 0.3, 0.6):
            for kind in ("even", "spread"):
                name = f"rectangles-{kind}-{count}-{density:g}"
                buffers = _random_buffers(count, density, Random(name), even=kind == "even")
                yield Instance("rectangles", name, Problem(buffers))


def alignments(quick: bool) -> Iterator[Instance]:
    """Random rectangles of odd sizes, each with an alignment of its own, a third of them larger than their size."""
    for count in (60,) if quick else (60, 150, 300):
        for density in (0.3,) if quick else (0.1, 0.3, 0.6):
            name = f"alignments-{count}-{density:g}"
            random = Random(name)
            buffers = tuple(
                Buffer(
                    each.id,
                    each.intervals,
                    each.size // GRANULE * random.choice((1, 7, 24, 64)) + random.randrange(1, 64),
                    random.choice((1, 4, 16, 64, 64, 256, 1024, 4096)),
                )
                for each in _random_buffers(count, density, random, even=False)
            )
            yield Instance("alignments", name, Problem(buffers))


def banks(quick: bool) -> Iterator[Instance]:
    """Random rectangles of which half have to lie within one bank, and a third of those in one of two banks."""
    for count in (60,) if quick else (60, 150):
        for density in (0.3,) if quick else (0.15, 0.3, 0.6):
            name = f"banks-{count}-{density:g}"
            random = Random(name)
            drawn = _random_buffers(count, density, random, even=True)
            largest = max(each.size for each in drawn)
            buffers: list[Buffer] = []
            for each in drawn:
                kind = random.random()
                # Two of the banks at the bottom, so that what may lie anywhere does not have to go above all of them.
                allowed = None if kind < 0.5 else (0, 1) if kind < 0.65 else tuple(range(64))
                buffers.append(Buffer(each.id, each.intervals, each.size, GRANULE, banks=allowed))
            # Two banks have room for one and a half times what has to lie in them.
            in_two = Problem(tuple(replace(each, banks=None) for each in buffers if each.banks == (0, 1)))
            bank = max(4 * largest, peak(in_two)[1] * 3 // 4)
            yield Instance("banks", name, Problem(tuple(buffers), bank_size=_granules(bank)))


def chains(quick: bool) -> Iterator[Instance]:
    """
    Inference of a convolutional network: each result is read by the next operator, some by later ones as well.

    Where the last number of the name is not 0, there are weights beside, brought in up to so many operators ahead.
    """
    shapes = ((40, 0.1, 0), (120, 0.3, 2)) if quick else (
        (40, 0.1, 0), (40, 0.4, 2), (120, 0.1, 1), (120, 0.3, 2), (120, 0.6, 3), (300, 0.2, 0), (300, 0.4, 1),
        (300, 0.6, 3),
    )  # fmt: skip
    for steps, skips, ahead in shapes:
        name = f"chains-{steps}-{skips:g}-{ahead}"
        random = Random(name)
        buffers: list[Buffer] = []
        size = 256.0 * 1024
        for step in range(steps):
            # Pooling halves the activations now and then, a wider layer gives some of that back.
            size *= random.choice((1, 1, 1, 1, 0.5, 1.4))
            last = step + 2
            if random.random() < skips:
                last += min(round(random.expovariate(0.15)), steps)
            extent = _granules(max(size, 2048) * random.choice((1, 1, 0.25, 0.75, 2)))
            buffers.append(_buffer(len(buffers), step, min(last, steps + 1), extent))
            if ahead:
                weights = _granules(exp(random.gauss(10, 1.5)))
                begin = max(0, step - random.randint(1, ahead))
                buffers.append(_buffer(len(buffers), begin, step + 1, weights))
        yield Instance("chains", name, Problem(tuple(buffers)))


def training(quick: bool) -> Iterator[Instance]:
    """
    A training step: what forward keeps is alive until its mirror image in backward, so lifetimes are nested.

    Gradients of weights live until the optimiser, at the end or at once; every second instance keeps only some
    activations and computes the others again.
    """
    for layers in (20,) if quick else (20, 50, 100, 150):
        for again in (False, True):
            for late in (False, True):
                name = f"training-{layers}{'-recomputed' if again else ''}{'-late' if late else ''}"
                yield Instance("training", name, Problem(_training(layers, again, late, Random(name))))


def _training(layers: int, again: bool, late: bool, random: Random) -> tuple[Buffer, ...]:
    buffers: list[Buffer] = []
    end = 6 * layers + layers

    def alive(lower: int, upper: int, size: float) -> None:
        buffers.append(_buffer(len(buffers), lower, upper, _granules(size)))

    for layer in range(layers):
        # Three moments a layer forward, three backward, one of the optimiser.
        forward, backward = 3 * layer, 3 * layers + 3 * (layers - 1 - layer)
        activation, weights = exp(random.gauss(10, 1)), exp(random.gauss(9.5, 1.2))
        kept = not again or layer % 4 == 0
        alive(forward, backward + 2 if kept else forward + 4, activation)
        if not kept:
            alive(backward - 1, backward + 2, activation)
        if random.random() < 0.6:  # what a normalisation or a pooling keeps beside it
            alive(forward + 1, backward + 1 if kept else forward + 2, activation * random.choice((0.03, 0.25, 1)))
        alive(forward, forward + 1, activation * random.uniform(0.2, 2))  # workspace
        alive(backward, backward + 4, activation)  # the gradient that goes down
        if random.random() < 0.5:
            alive(backward, backward + 1, activation * random.uniform(0.2, 2))
        alive(backward + 1, 6 * layers + layer + 1 if late else backward + 3, weights)
    return tuple(each for each in buffers if each.upper <= end)


def pipelines(quick: bool) -> Iterator[Instance]:
    """
    A software pipeline unrolled: tiles that are loaded ahead and stored behind, iteration after iteration.

    The tiles of several kernels, with results that stay for later kernels across them; each iteration has a buffer,
    so the depth of the rings is for the planner to find.
    """
    for iterations in (20,) if quick else (20, 50, 100):
        for ahead in (1, 2, 3):
            name = f"pipelines-{iterations}-{ahead}"
            random = Random(name)
            buffers: list[Buffer] = []
            moment = 0
            while moment < 3 * iterations:
                tiles = random.randint(4, 12)
                operands = [_granules(exp(random.gauss(9, 0.7))) for _ in range(random.randint(2, 3))]
                result, steps = _granules(exp(random.gauss(8.5, 0.8))), random.randint(1, 4)
                for tile in range(tiles):
                    at = moment + tile
                    for size in operands:
                        buffers.append(_buffer(len(buffers), max(0, at - ahead), at + 1, size))
                    if tile % steps == 0:  # the accumulator of a reduction of so many tiles
                        buffers.append(_buffer(len(buffers), at, at + steps + ahead, result))
                if random.random() < 0.7:
                    stays = random.randint(1, 30)
                    buffers.append(_buffer(len(buffers), moment, moment + tiles + stays, _granules(result * tiles / 2)))
                moment += tiles
            yield Instance("pipelines", name, Problem(tuple(buffers)))
