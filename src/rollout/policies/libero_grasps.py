"""Where a scripted LIBERO expert takes hold of things: candidates from measured sizes, the clearest one first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Final

import numpy as np
from msgspec import Struct

from rollout.policies.libero_motion import downward, stretch
from rollout.policies.libero_scene import Block, Scene

__all__ = ["Grasp", "grasps"]

DEEP: Final = 0.028  # the fingertips' pads below the top of what they hold
ABOVE: Final = np.array([0.0, 0.0, 0.06])  # where the hand comes from
COMFORTABLE: Final = 0.60  # metres from shoulder to wrist; at 0.72 the elbow is straight, and stuck
OVERSTRETCHED: Final = 0.69
STRETCHED: Final = 40.0  # a radian of turning is worth 2.5 cm of stretching
RIM_DEEP: Final = 0.026
WALL: Final = 0.02  # metres around a hollow that count as its wall
ABOVE_SUPPORT: Final = 0.010  # the fingertips end 8 mm below the point that is controlled
SPREAD: Final = 0.078  # distance of the open fingers
HOLLOW: Final = ("bowl", "ramekin", "mug", "plate", "frypan", "basket", "tray")  # held by the rim
# On which side along its longer level axis a mug has its handle; where else things have one, in their own frame.
MUGS: Final = {"porcelain_mug": -1, "white_yellow_mug": 1, "red_coffee_mug": 1}
HANDLES: Final = {
    "chefmate_8_frypan": np.array([0.15, 0.0, 0.05]),
    "moka_pot": np.array([0.0, -0.001, 0.078]),
}
TWISTS: Final = (0.0, -math.pi / 8, math.pi / 8, -math.pi / 5, math.pi / 5)
DIRECTIONS: Final = tuple(math.pi / 2 + step * math.pi / 16 for step in range(32))

# The open hand, seen from the point between its fingertips (x: the line of the fingers, z: upwards): two fingers,
# then the palm, as far up as it comes down beside things, and the wrist, as points that must be free.
FINGERS: Final = np.array(list(product((-0.062, -0.042, 0.042, 0.062), (-0.01, 0.01), (-0.006, 0.02, 0.045))))
PALM: Final = np.array(
    list(product((-0.1, -0.05, 0.0, 0.05, 0.1), (-0.03, 0.0, 0.03), (0.055, 0.09, 0.14, 0.2)))
)
WRIST: Final = np.array(list(product((-0.07, 0.07), (-0.07, 0.07), (0.15, 0.2, 0.26))))


class Grasp(Struct, frozen=True, kw_only=True):
    """How to take an object: where the hand is, how it is turned, how wide the fingers start."""

    position: np.ndarray  # in the world, at the time of asking
    angle: float  # of the fingers' line, radians from the x axis
    opening: float  # metres between the fingers on the way down
    twist: float = 0.0  # radians between the fingers' line and the one straight across

    @property
    def rotation(self) -> np.ndarray:
        return downward(self.angle)


def grasps(scene: Scene, name: str, spot: np.ndarray | None = None) -> list[Grasp]:
    """Every way to take `name` that is known: first the one with the most room that turns and stretches the arm
    least, both where the object is and at `spot`, where its origin shall go."""
    block = scene.block(name)
    found = list(_known(scene, name, block))
    obstacles = list(_obstacles(scene, name, block))
    moved = np.zeros(3) if spot is None else spot - scene.position(name)

    def far(grasp: Grasp) -> float:
        high = grasp.position + ABOVE
        most = max(stretch(scene, high), stretch(scene, high + moved))
        return max(0.0, most - COMFORTABLE) + 10 * max(0.0, most - OVERSTRETCHED)

    return sorted(found, key=lambda grasp: _cost(grasp, obstacles) + STRETCHED * far(grasp))


def _obstacles(scene: Scene, name: str, block: Block) -> Iterator[Block]:
    """What else there is; of what the object lies in, the walls alone."""
    middle = block.centre[np.newaxis]
    for other in scene.layout.blocks:
        solid = scene.block(other)
        if other != name and not solid.holds(middle, 0.0)[0]:
            yield solid
    for region in scene.layout.regions:
        hollow = scene.hollow(region)
        if scene.owner(region) not in (None, name) and hollow.holds(middle, 0.01)[0]:
            yield from _walls(hollow)


def _walls(hollow: Block) -> Iterator[Block]:
    for axis in sorted(range(3), key=lambda axis: abs(float(hollow.rotation[2, axis])))[:2]:
        for side in (-1, 1):
            half = hollow.half + WALL * (1 - np.abs(hollow.rotation[2]).round())  # no higher than the hollow
            half[axis] = WALL / 2
            away = side * (hollow.half[axis] + WALL / 2) * hollow.rotation[:, axis]
            yield Block(centre=hollow.centre + away, rotation=hollow.rotation, half=half)


def _known(scene: Scene, name: str, block: Block) -> Iterator[Grasp]:
    category = name.rstrip("_0123456789")
    if category in MUGS:
        yield from _by_the_rim(_cup(block, MUGS[category]))
    elif category in HANDLES:
        yield from _by_the_handle(scene, name, HANDLES[category])
    elif any(word in category for word in HOLLOW):
        yield from _by_the_rim(block)
    else:
        yield from _across(block)


def _cup(block: Block, side: int) -> Block:
    """A mug without its handle, which sticks out on one side along the longer of the two level axes."""
    first, second = sorted(range(3), key=lambda axis: abs(float(block.rotation[2, axis])))[:2]
    long, short = (first, second) if block.half[first] > block.half[second] else (second, first)
    half, away = block.half.copy(), block.half[long] - block.half[short]
    half[long] = half[short]
    return Block(
        centre=block.centre - side * away * block.rotation[:, long], rotation=block.rotation, half=half
    )


def _by_the_handle(scene: Scene, name: str, handle: np.ndarray) -> Iterator[Grasp]:
    rotation = scene.rotation(name)
    line = rotation[:, 1] * (1, 1, 0)
    yield Grasp(
        position=scene.position(name) + rotation @ handle,
        angle=_angle(line),
        opening=SPREAD,
    )


def _across(block: Block) -> Iterator[Grasp]:
    height = max(block.top - DEEP, min(float(block.centre[2]), block.bottom + ABOVE_SUPPORT))
    for direction, half in block.sides():
        for twist in TWISTS if 2 * half < SPREAD else ():
            angle = math.atan2(direction[1], direction[0]) + twist
            line = np.array([math.cos(angle), math.sin(angle), 0.0])
            yield Grasp(
                position=_at(block.centre, height), angle=_angle(line), opening=SPREAD, twist=abs(twist)
            )


def _by_the_rim(block: Block) -> Iterator[Grasp]:
    radius = min(half for _, half in block.sides()) - 0.008
    height = max(block.top - RIM_DEEP, block.bottom + ABOVE_SUPPORT)
    for around, opening, twist in product(DIRECTIONS, (SPREAD, 0.04), TWISTS):
        outward = np.array([math.cos(around), math.sin(around), 0.0])
        angle = _angle(np.array([math.cos(around + twist), math.sin(around + twist), 0.0]))
        position = _at(block.centre + radius * outward, height)
        yield Grasp(position=position, angle=angle, opening=opening, twist=abs(twist))


def _at(point: np.ndarray, height: float) -> np.ndarray:
    return np.array([point[0], point[1], height])


def _angle(direction: np.ndarray) -> float:
    """The line's angle, from an eighth of a turn before the y axis, where the hand starts, to three after it:
    what the last joint of the arm can do."""
    return (math.atan2(direction[1], direction[0]) - math.pi / 4) % math.pi + math.pi / 4


def _cost(grasp: Grasp, obstacles: list[Block]) -> float:
    """Points of the hand that are not free, how far it must turn, how much the fingers must be narrowed."""
    squeeze = (SPREAD - grasp.opening) / 2
    fingers = FINGERS - np.sign(FINGERS) * (squeeze, 0, 0)
    points = np.concatenate([fingers, PALM, WRIST]) @ _frame(grasp.angle).T + grasp.position
    blocked = sum(int(block.holds(points, 0.008).sum()) for block in obstacles)
    turn = abs(grasp.angle - math.pi / 2)
    return 3.0 * blocked + turn + 20 * squeeze + 2 * grasp.twist


def _frame(angle: float) -> np.ndarray:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
