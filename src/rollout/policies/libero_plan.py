"""From a LIBERO goal to the skills that reach it, and whether a part of it holds already."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rollout.policies.libero_fixtures import OPENED, pull_drawer, push_door, push_drawer, turn_knob
from rollout.policies.libero_motion import OPEN, Script, grip
from rollout.policies.libero_scene import Scene
from rollout.policies.libero_skills import drag, holding, pick, place
from rollout.spaces import rebuild
from rollout.types import TaskInfo

__all__ = ["refused", "solve"]

Predicate = tuple[str, ...]
ORDER: Final = ("open", "turnon", "turnoff", "in", "on", "close")
# LIBERO's articulated_objects.py: a stove is on from 0.5 rad, off below 0.
ON: Final = 0.65
OFF: Final = -0.003
HOLLOW: Final = ("bowl", "basket", "tray", "caddy")


def refused(task: TaskInfo) -> str | None:
    """Why the expert cannot try the task; None where it can."""
    if not task.suite.startswith("libero:"):
        return f"the expert of libero cannot act in {task.suite}; it knows libero:* only"
    if not np.isfinite(rebuild(task.action_space).high).all():
        return f"the expert of libero needs relative control: drop --set control_mode=absolute for {task.suite}"
    unknown = sorted({predicate[0] for predicate in task.goal} - set(ORDER))
    if unknown or not task.goal:
        what = ", ".join(unknown) or "an empty goal"
        return f"the expert of libero has no skill for {what} ({task.suite} task {task.task_id}, {task.task})"
    return None


def solve(scene: Scene, goal: tuple[Predicate, ...]) -> Script:
    """Reach one part of the goal after the other, again and again: the simulator ends the episode at success."""
    while True:
        for predicate in sorted(goal, key=lambda predicate: _rank(predicate, goal)):
            if not holds(scene, predicate):
                scene = yield from achieve(scene, predicate)
        scene = yield from grip(scene, scene.hand, scene.hand_rotation, OPEN, 1)


def _rank(predicate: Predicate, goal: tuple[Predicate, ...]) -> int:
    """What is closed with nothing to put into it first is closed at once, and is then out of the way."""
    filled = any(other[0] == "in" and other[2].startswith(predicate[1]) for other in goal)
    return -1 if predicate[0] == "close" and not filled else ORDER.index(predicate[0])


def achieve(scene: Scene, predicate: Predicate) -> Script:
    """Use the skill that makes the predicate true."""
    match predicate:
        case ("open", what):
            return (yield from pull_drawer(scene, _joint(scene, what)))
        case ("close", what) if _drawer(scene, what) is None:
            return (yield from push_door(scene, _joint(scene, what)))
        case ("close", what):
            return (yield from push_drawer(scene, _joint(scene, what)))
        case ("turnon", what):
            return (yield from turn_knob(scene, _joint(scene, what), ON))
        case ("turnoff", what):
            return (yield from turn_knob(scene, _joint(scene, what), OFF))
        case (_, name, target):
            return (yield from _put(scene, name, target))
    return scene


def _put(scene: Scene, name: str, target: str) -> Script:
    drawer = _drawer(scene, target)
    if drawer is not None and scene.joint(drawer) > OPENED + 0.03:
        scene = yield from pull_drawer(scene, drawer)
    if name.startswith("plate") and scene.owner(target) is None and target in scene.layout.regions:
        return (yield from drag(scene, name, scene.position(target)))
    scene = yield from pick(scene, name, scene.position(target))
    if not holding(scene, name):
        return scene
    spot, bottom = _spot(scene, target)
    lower = drawer is not None and "top" not in target  # the palm must fit beside what is above
    side = scene.rotation(drawer)[:, 0] if drawer is not None and lower else None
    angle = None if side is None else math.atan2(side[1], side[0])
    return (yield from place(scene, name, spot, bottom, angle))


def _joint(scene: Scene, what: str) -> str:
    """The joint that a region or a fixture moves on."""
    drawer = _drawer(scene, what)
    return drawer or next(joint for joint in scene.layout.joints if joint.startswith(f"{what}_"))


def _drawer(scene: Scene, region: str) -> str | None:
    joint = region.removesuffix("_region") + "_level"
    return joint if joint in scene.layout.joints else None


def holds(scene: Scene, predicate: Predicate) -> bool:
    """Whether the predicate seems to hold (LIBERO also asks for contact, which the state does not tell)."""
    match predicate:
        case ("open", what):
            return scene.joint(_joint(scene, what)) < OPENED
        case ("close", what):
            return scene.joint(_joint(scene, what)) > 0
        case ("turnon", what):
            return scene.joint(_joint(scene, what)) >= 0.5
        case ("turnoff", what):
            return scene.joint(_joint(scene, what)) < 0
        case (_, name, target) if target in scene.layout.regions:
            return _within(scene, target, scene.position(name))
        case (_, name, target):
            apart = scene.position(name) - scene.position(target)
            return math.hypot(apart[0], apart[1]) < 0.03 and 0 <= apart[2] < 0.06
    return False


def _within(scene: Scene, region: str, point: np.ndarray) -> bool:
    half = np.abs(scene.rotation(region) @ scene.value(f"{region}.size"))
    apart = np.abs(point - scene.position(region))
    return bool((apart[:2] < half[:2]).all() and apart[2] < half[2] + 0.1)


def _spot(scene: Scene, target: str) -> tuple[np.ndarray, float]:
    """Where an object's origin belongs, and how far down its lowest point goes before the hand lets go."""
    spot = scene.position(target)
    if target not in scene.layout.regions:
        hollow = any(word in target for word in HOLLOW)
        return spot, scene.block(target).top - 0.015 if hollow else float(spot[2]) + 0.012
    owner = scene.owner(target)
    top = scene.block(owner).top if owner is not None else -math.inf
    if "contain" in target:
        return spot, top - 0.03
    if 0 <= top - spot[2] < 0.06:  # a flat top, such as a stove's
        return spot, top + 0.008
    half = np.abs(scene.rotation(target) @ scene.value(f"{target}.size"))
    return spot, float(spot[2]) - float(half[2]) + 0.012
