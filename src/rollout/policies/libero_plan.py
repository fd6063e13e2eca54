"""From a LIBERO goal to the skills that reach it, and whether a part of it holds already."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rollout.policies.libero_fixtures import OPENED, OPERATED, drawer_of, operate, operated, pull_drawer
from rollout.policies.libero_motion import OPEN, Script, grip
from rollout.policies.libero_places import Target, berth, lies
from rollout.policies.libero_scene import Scene
from rollout.policies.libero_skills import drag, holding, pick, place
from rollout.spaces import rebuild
from rollout.types import TaskInfo

__all__ = ["holds", "refused", "solve"]

Predicate = tuple[str, ...]
PATIENCE: Final = 12  # steps until what seems to hold is done again, since the episode goes on
ORDER: Final = ("open", "turnon", "turnoff", "in", "on", "close")


def refused(task: TaskInfo) -> str | None:
    """Why the expert cannot try the task; None where it can."""
    if not task.suite.startswith("libero:"):
        return f"the expert of libero cannot act in {task.suite}; it knows libero:* only"
    space: Any = rebuild(task.action_space)  # a Box
    if not np.isfinite(space.high).all():
        return (
            f"the expert of libero needs relative control: drop --set control_mode=absolute for {task.suite}"
        )
    unknown = sorted({predicate[0] for predicate in task.goal} - set(ORDER))
    if unknown or not task.goal:
        what = ", ".join(unknown) or "an empty goal"
        return f"the expert of libero has no skill for {what} ({task.suite} task {task.task_id}, {task.task})"
    return None


def solve(scene: Scene, goal: tuple[Predicate, ...]) -> Script:
    """Reach one part of the goal after the other, again and again: the simulator ends the episode at success."""
    ordered = sorted(goal, key=lambda predicate: _rank(predicate, goal))
    patience = PATIENCE
    while True:
        again = patience == 0
        for predicate in ordered:
            if again or not holds(scene, predicate):
                patience = PATIENCE
                scene = yield from achieve(scene, predicate, _share(predicate, goal))
        patience -= 1
        scene = yield from grip(scene, scene.hand, scene.hand_rotation, OPEN, 1)


def _rank(predicate: Predicate, goal: tuple[Predicate, ...]) -> int:
    """What is closed with nothing to put into it first is closed at once, and is then out of the way."""
    filled = any(other[0] == "in" and other[2].startswith(predicate[1]) for other in goal)
    return -1 if predicate[0] == "close" and not filled else ORDER.index(predicate[0])


def _share(predicate: Predicate, goal: tuple[Predicate, ...]) -> float:
    """Where across its target a thing goes, -1 to 1: in the middle, unless others go there as well."""
    same = [other for other in goal if other[0] == "on" == predicate[0] and other[-1] == predicate[-1]]
    return 0.0 if len(same) < 2 else 2 * same.index(predicate) / (len(same) - 1) - 1


def achieve(scene: Scene, predicate: Predicate, share: float = 0.0) -> Script:
    """Use the skill that makes the predicate true; `share` as in `_share`."""
    if predicate[0] in OPERATED:
        return (yield from operate(scene, predicate[0], predicate[1]))
    return (yield from _put(scene, predicate[1], Target(name=predicate[2], share=share)))


def _put(scene: Scene, name: str, target: Target) -> Script:
    drawer = drawer_of(scene, target.name)
    if drawer is not None and scene.joint(drawer) > OPENED + 0.03:
        scene = yield from pull_drawer(scene, drawer)
    if name.startswith("plate") and scene.owner(target.name) is None and target.name in scene.layout.regions:
        return (yield from drag(scene, name, scene.position(target.name)))
    scene = yield from pick(scene, name, scene.position(target.name))
    if not holding(scene, name):
        return scene
    return (yield from place(scene, name, berth(scene, name, target)))


def holds(scene: Scene, predicate: Predicate) -> bool:
    """Whether the predicate seems to hold (LIBERO also asks for contact, which the state does not tell)."""
    if predicate[0] in OPERATED:
        return operated(scene, predicate[0], predicate[1])
    return lies(scene, predicate[0], predicate[1], predicate[2])
