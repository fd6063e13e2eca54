"""What a scripted LIBERO expert does with things that move on a joint: drawers, a microwave's door, a stove's knob."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rollout.policies.libero_motion import (
    CLOSE,
    HOLD,
    OPEN,
    Script,
    clamp,
    descend,
    downward,
    grip,
    reach,
    servo,
    tilted,
    turned,
)
from rollout.policies.libero_scene import Scene
from rollout.policies.libero_skills import travel

__all__ = ["OPENED", "OPERATED", "drawer_of", "operate", "operated", "pull_drawer"]

OPERATED: Final = frozenset({"open", "close", "turnon", "turnoff"})
# LIBERO's articulated_objects.py: a stove is on from 0.5 rad, off below 0; a microwave open below -1.3 rad.
ON: Final = 0.65
OFF: Final = -0.003
AJAR: Final = -1.35
PULLED: Final = -0.33  # a microwave's door that a hand fits behind
# LIBERO's articulated_objects.py calls a drawer open below -0.14 and closed above 0.
OPENED: Final = -0.15
CLOSED: Final = 0.002
REST: Final = downward(math.radians(120))  # in the middle of what the last joint can do
UP: Final = np.array([0.0, 0.0, 1.0])
# How far below the horizontal the hand points at a drawer: the palm must clear the other handles.
PULLING: Final = math.radians(12)
PUSHING: Final = math.radians(62)
NARROW: Final = 4  # steps of closing, so that the fingers fit between two handles


def operate(scene: Scene, verb: str, what: str) -> Script:
    """Open or close a drawer (named by its region) or a microwave, turn a stove on or off."""
    joint, is_drawer = _joint_of(scene, what), drawer_of(scene, what) is not None
    if verb in ("turnon", "turnoff"):
        script = turn_knob(scene, joint, ON if verb == "turnon" else OFF)
    elif verb == "open":
        script = pull_drawer(scene, joint) if is_drawer else pull_door(scene, joint)
    else:
        script = push_drawer(scene, joint) if is_drawer else push_door(scene, joint)
    return (yield from script)


def operated(scene: Scene, verb: str, what: str) -> bool:
    """Whether that is done."""
    at, is_drawer = scene.joint(_joint_of(scene, what)), drawer_of(scene, what) is not None
    done = {
        "open": at < (OPENED if is_drawer else AJAR),
        "close": at > (0 if is_drawer else -0.005),
        "turnon": at >= 0.5,
        "turnoff": at < 0,
    }
    return done[verb]


def drawer_of(scene: Scene, region: str) -> str | None:
    """The joint of the drawer whose inside the region is; None where it is no drawer's."""
    joint = region.removesuffix("_region") + "_level"
    return joint if joint in scene.layout.joints else None


def _joint_of(scene: Scene, what: str) -> str:
    drawer = drawer_of(scene, what)
    return drawer or next(joint for joint in scene.layout.joints if joint.startswith(f"{what}_"))


def _facing(scene: Scene, joint: str, slope: float, line: np.ndarray) -> np.ndarray:
    """The hand pointing at a drawer's front, its fingers on `line`."""
    pointing = math.cos(slope) * scene.rotation(joint)[:, 1] - math.sin(slope) * UP
    ways = [tilted(pointing, sign * line) for sign in (1.0, -1.0)]
    return min(ways, key=lambda way: float(np.linalg.norm(turned(way, REST))))


def _approach(scene: Scene, joint: str, rotation: np.ndarray, fingers: float, distance: float) -> Script:
    out = -scene.rotation(joint)[:, 1]
    handle = scene.value(f"{joint}.handle")
    raised = handle + 0.14 * out
    raised[2] = max(float(scene.block(joint).top) + 0.10, float(handle[2]) + 0.12)
    scene = yield from travel(scene, raised, REST, fingers, hanging=0.02)
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
        scene = yield servo(scene, scene.value(f"{joint}.handle") + 0.06 * out, rotation, CLOSE, 0.9)
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
    nearer = back + 0.10 * _homewards(scene) + 0.10 * UP
    return (yield from reach(scene, nearer, downward(math.pi / 2), OPEN, within=0.03, limit=40))


def turn_knob(scene: Scene, joint: str, wanted: float) -> Script:
    """Take a knob by its bar and turn it to `wanted` radians."""
    knob = scene.block(joint)
    middle = np.array([*scene.position(joint)[:2], knob.top - 0.010])
    bar = scene.rotation(joint)[:, 0]
    angle = math.atan2(bar[1], bar[0]) % math.pi  # within a quarter turn of the y axis
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


def pull_door(scene: Scene, joint: str) -> Script:
    """Open a microwave: pull the upright handle of its door as far as the arm goes, then push from inside."""
    rotation = _facing(scene, joint, PULLING, scene.rotation(joint)[:, 0])
    if scene.joint(joint) > PULLED:
        scene = yield from _approach(scene, joint, rotation, OPEN, 0.07)
        handle = scene.value(f"{joint}.handle")
        scene = yield from reach(scene, handle, rotation, OPEN, within=0.008, speed=0.5)
        scene = yield from clamp(scene, rotation)
    for _ in range(60):
        if scene.joint(joint) < PULLED:
            break
        out = -scene.rotation(joint)[:, 1]
        rotation = _facing(scene, joint, PULLING, scene.rotation(joint)[:, 0])
        scene = yield servo(scene, scene.value(f"{joint}.handle") + 0.05 * out, rotation, CLOSE, 0.6)
    scene = yield from grip(scene, scene.hand, rotation, OPEN, 6)
    scene = yield from _leave_door(scene, joint, rotation)
    return (yield from _swing(scene, joint, start=0.06, end=-0.05, wanted=(-9.0, AJAR)))


def _leave_door(scene: Scene, joint: str, rotation: np.ndarray) -> Script:
    """Off the handle, nearer to the arm, and only there down: turning a stretched arm would straighten its elbow."""
    off = scene.hand - 0.06 * scene.rotation(joint)[:, 1]
    scene = yield from reach(scene, off, rotation, OPEN, within=0.02, limit=20)
    nearer = scene.hand + 0.18 * _homewards(scene) + 0.12 * UP
    scene = yield from reach(scene, nearer, rotation, OPEN, within=0.03, limit=40)
    return (yield from reach(scene, nearer, downward(math.pi / 2), CLOSE, within=0.03, limit=40))


def _homewards(scene: Scene) -> np.ndarray:
    """The level direction from the hand to the shoulder."""
    home = (scene.shoulder - scene.hand) * (1, 1, 0)
    direction: np.ndarray = home / max(float(np.linalg.norm(home)), 1e-9)
    return direction


def push_door(scene: Scene, joint: str) -> Script:
    """Close a microwave: push the outside of its door all the way round its hinge."""
    return (yield from _swing(scene, joint, start=-0.13, end=-0.01, wanted=(0.0, 9.0)))


def _swing(scene: Scene, joint: str, *, start: float, end: float, wanted: tuple[float, float]) -> Script:
    """Push a door with closed fingers, from `start` in its own frame towards `end`, until the joint is `wanted`."""
    rotation = downward(math.pi / 2)
    beside = _at_door(scene, joint, start)
    scene = yield from travel(scene, beside + 0.10 * UP, rotation, CLOSE, hanging=0.02)
    scene = yield from descend(scene, beside, rotation, CLOSE)
    for _ in range(160):
        if wanted[0] < scene.joint(joint) < wanted[1]:
            break
        scene = yield servo(scene, _at_door(scene, joint, end), rotation, CLOSE)
    return (yield from reach(scene, scene.hand + 0.10 * UP, rotation, OPEN, within=0.03, limit=30))


def _at_door(scene: Scene, joint: str, inwards: float) -> np.ndarray:
    """A point `inwards` of the door's middle plane, so high that the palm is above the door."""
    door = scene.block(joint)
    point: np.ndarray = scene.position(joint) + scene.rotation(joint) @ np.array([0.17, inwards, 0.0])
    point[2] = door.top - 0.045
    return point
