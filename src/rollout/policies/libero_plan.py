"""From a LIBERO goal to the skills that reach it, and whether a part of it holds already."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rollout.policies.libero_motion import OPEN, Script, grip
from rollout.policies.libero_scene import Scene
from rollout.policies.libero_skills import holding, pick, place
from rollout.spaces import rebuild
from rollout.types import TaskInfo

__all__ = ["refused", "solve"]

Predicate = tuple[str, ...]
PREDICATES: Final = frozenset({"on", "in"})


def refused(task: TaskInfo) -> str | None:
    """Why the expert cannot try the task; None where it can."""
    if not task.suite.startswith("libero:"):
        return f"the expert of libero cannot act in {task.suite}; it knows libero:* only"
    if not np.isfinite(rebuild(task.action_space).high).all():
        return (
            f"the expert of libero needs relative control: drop --set control_mode=absolute for {task.suite}"
        )
    unknown = sorted({predicate[0] for predicate in task.goal} - PREDICATES)
    if unknown or not task.goal:
        what = ", ".join(unknown) or "an empty goal"
        return f"the expert of libero has no skill for {what} ({task.suite} task {task.task_id}, {task.task})"
    return None


def solve(scene: Scene, goal: tuple[Predicate, ...]) -> Script:
    """Reach one part of the goal after the other, again and again: the simulator ends the episode at success."""
    while True:
        for predicate in goal:
            if not holds(scene, predicate):
                scene = yield from achieve(scene, predicate)
        scene = yield from grip(scene, scene.hand, scene.hand_rotation, OPEN, 1)


def achieve(scene: Scene, predicate: Predicate) -> Script:
    """Use the skill that makes the predicate true."""
    _, name, target = predicate
    scene = yield from pick(scene, name)
    if not holding(scene, name):
        return scene
    spot, bottom = _spot(scene, target)
    return (yield from place(scene, name, spot, bottom))


def holds(scene: Scene, predicate: Predicate) -> bool:
    """Whether the predicate seems to hold (LIBERO also asks for contact, which the state does not tell)."""
    _, name, target = predicate
    if target in scene.layout.regions:
        return bool(_region(scene, target, scene.position(name)))
    apart = scene.position(name) - scene.position(target)
    return math.hypot(apart[0], apart[1]) < 0.03 and 0 <= apart[2] < 0.06


def _region(scene: Scene, region: str, point: np.ndarray) -> bool:
    half = np.abs(scene.rotation(region) @ scene.value(f"{region}.size"))
    apart = np.abs(point - scene.position(region))
    return bool((apart[:2] < half[:2]).all() and apart[2] < half[2] + 0.1)


def _spot(scene: Scene, target: str) -> tuple[np.ndarray, float]:
    """Where an object's origin belongs, and how far down its lowest point goes before the hand lets go."""
    if target not in scene.layout.regions:
        return scene.position(target), float(scene.position(target)[2]) + 0.012
    spot = scene.position(target)
    owner = scene.owner(target)
    if "contain" in target and owner is not None:
        return spot, scene.block(owner).top - 0.03
    half = np.abs(scene.rotation(target) @ scene.value(f"{target}.size"))
    return spot, float(spot[2]) - float(half[2]) + 0.012
