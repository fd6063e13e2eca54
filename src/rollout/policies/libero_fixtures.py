"""What a scripted LIBERO expert does with things that move on a joint: drawers, a microwave's door, a stove's knob."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rollout.policies.libero_motion import CLOSE, HOLD, OPEN, Script, clamp, descend, downward, grip, reach, servo
from rollout.policies.libero_motion import tilted, turned
from rollout.policies.libero_scene import Scene
from rollout.policies.libero_skills import travel

__all__ = ["CLOSED", "OPENED", "pull_drawer", "push_door", "push_drawer", "turn_knob"]

# LIBERO's articulated_objects.py calls a drawer open below -0.14 and closed above 0.
OPENED: Final = -0.15
CLOSED: Final = 0.002
UP: Final = np.array([0.0, 0.0, 1.0])
# How far below the horizontal the hand points at a drawer: the palm must clear the other handles.
PULLING: Final = math.radians(12)
PUSHING: Final = math.radians(45)
NARROW: Final = 4  # steps of closing, so that the fingers fit between two handles


def _facing(scene: Scene, joint: str, slope: float, line: np.ndarray) -> np.ndarray:
    """The hand pointing at a drawer's front, its fingers on `line`."""
    pointing = math.cos(slope) * scene.rotation(joint)[:, 1] - math.sin(slope) * UP
    ways = [tilted(pointing, sign * line) for sign in (1.0, -1.0)]
    return min(ways, key=lambda way: float(np.linalg.norm(turned(way, downward(math.pi / 2)))))


def _approach(scene: Scene, joint: str, rotation: np.ndarray, fingers: float, distance: float) -> Script:
    out = -scene.rotation(joint)[:, 1]
    handle = scene.value(f"{joint}.handle")
    raised = handle + 0.12 * out
    raised[2] = max(float(scene.hand[2]), float(handle[2]) + 0.05)
    scene = yield from travel(scene, raised, scene.hand_rotation, fingers, hanging=0.02)
    scene = yield from reach(scene, raised, rotation, fingers, within=0.03, limit=40)
    return (yield from reach(scene, handle + distance * out, rotation, fingers, within=0.008, limit=60))


def pull_drawer(scene: Scene, joint: str) -> Script:
    """Take the handle and pull until the drawer is open."""
    out, rotation = -scene.rotation(joint)[:, 1], _facing(scene, joint, PULLING, UP)
    scene = yield from _approach(scene, joint, rotation, OPEN, 0.06)
    handle = scene.value(f"{joint}.handle")
    scene = yield from grip(scene, handle + 0.06 * out, rotation, CLOSE, NARROW)
    scene = yield from reach(scene, handle, rotation, HOLD, within=0.006, speed=0.5, limit=40)
    scene = yield from clamp(scene, rotation)
    for _ in range(60):
        if scene.joint(joint) < OPENED:
            break
        scene = yield servo(scene, scene.value(f"{joint}.handle") + 0.05 * out, rotation, CLOSE, 0.6)
    scene = yield from grip(scene, scene.hand, rotation, OPEN, 5)
    return (yield from _retreat(scene, out, rotation))


def push_drawer(scene: Scene, joint: str) -> Script:
    """Push the drawer in with closed fingers."""
    side, out = scene.rotation(joint)[:, 0], -scene.rotation(joint)[:, 1]
    rotation = _facing(scene, joint, PUSHING, side)
    scene = yield from _approach(scene, joint, rotation, CLOSE, 0.06)
    for _ in range(80):
        if scene.joint(joint) > CLOSED:
            break
        scene = yield servo(scene, scene.value(f"{joint}.handle") - 0.02 * out, rotation, CLOSE, 0.8)
    return (yield from _retreat(scene, out, rotation))


def _retreat(scene: Scene, out: np.ndarray, rotation: np.ndarray) -> Script:
    back = scene.hand + 0.08 * out
    scene = yield from reach(scene, back, rotation, OPEN, within=0.02, limit=20)
    return (yield from reach(scene, back + 0.12 * UP, downward(math.pi / 2), OPEN, within=0.03, limit=40))


def turn_knob(scene: Scene, joint: str, wanted: float) -> Script:
    """Take a knob by its bar and turn it to `wanted` radians."""
    knob = scene.block(joint)
    middle = np.array([*scene.position(joint)[:2], knob.top - 0.010])
    bar = scene.rotation(joint)[:, 0]
    angle = math.atan2(bar[1], bar[0])
    angle = (angle + math.pi) % math.pi  # within a quarter turn of the y axis
    rotation = downward(angle)
    scene = yield from travel(scene, middle + 0.08 * UP, rotation, OPEN, hanging=0.02)
    scene = yield from descend(scene, middle, rotation, OPEN)
    scene = yield from clamp(scene, rotation)
    start = scene.joint(joint)
    for _ in range(60):
        left = wanted - scene.joint(joint)
        if left * (wanted - start) <= 0:
            break
        ahead = downward(angle + scene.joint(joint) - start + math.copysign(0.4, left))
        scene = yield servo(scene, middle, ahead, CLOSE)
    scene = yield from grip(scene, scene.hand, scene.hand_rotation, OPEN, 5)
    return (yield from reach(scene, middle + 0.10 * UP, scene.hand_rotation, OPEN, within=0.03, limit=30))


def push_door(scene: Scene, joint: str) -> Script:
    """Close a microwave: push the outside of its door with closed fingers, all the way round its hinge."""
    rotation = downward(math.pi / 2)
    start = _on_door(scene, joint, 0.10)
    scene = yield from travel(scene, start + 0.10 * UP, rotation, CLOSE, hanging=0.02)
    scene = yield from descend(scene, start, rotation, CLOSE)
    for _ in range(160):
        if scene.joint(joint) > 0:
            break
        scene = yield servo(scene, _on_door(scene, joint, -0.02), rotation, CLOSE)
    return (yield from reach(scene, scene.hand + 0.10 * UP, rotation, OPEN, within=0.03, limit=30))


def _on_door(scene: Scene, joint: str, away: float) -> np.ndarray:
    """A point `away` metres in front of the door's outer face, so high that the palm is above the door."""
    door = scene.block(joint)
    point = scene.position(joint) + scene.rotation(joint) @ np.array([0.17, -0.03 - away, 0.0])
    point[2] = door.top - 0.045
    return point
