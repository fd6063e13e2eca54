"""What a scripted LIBERO expert can do: pick and place."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from msgspec import Struct

from rollout.policies.libero_grasps import SPREAD, Grasp, grasps
from rollout.policies.libero_motion import (
    CLOSE,
    HOLD,
    OPEN,
    Script,
    ceiling,
    clamp,
    descend,
    downward,
    grip,
    reach,
    servo,
)
from rollout.policies.libero_scene import Scene

__all__ = ["Berth", "drag", "holding", "pick", "place", "travel"]

CLEAR: Final = 0.03  # metres between what hangs from the hand and what it passes over
FINGER_STEP: Final = 0.01  # what one step changes of the distance between the fingers
UP: Final = np.array([0.0, 0.0, 1.0])


def pick(scene: Scene, name: str, spot: np.ndarray | None = None) -> Script:
    """Take hold of an object that shall go to `spot`, and lift it; another way of holding it when it slips."""
    for attempt in range(3):
        choices = grasps(scene, name, spot)
        if not choices:
            break
        before = float(scene.position(name)[2])
        scene = yield from _take(scene, choices[min(attempt, len(choices) - 1)])
        if scene.position(name)[2] > before + 0.03 and holding(scene, name):
            break
        scene = yield from grip(scene, scene.hand, scene.hand_rotation, OPEN, 3)
    return scene


def holding(scene: Scene, name: str) -> bool:
    """Whether the object is where the fingers are."""
    return bool(scene.block(name).holds(scene.hand[np.newaxis], 0.02)[0])


def _take(scene: Scene, grasp: Grasp) -> Script:
    above = grasp.position + 0.08 * UP
    scene = yield from travel(scene, above, grasp.rotation, OPEN, hanging=0.02)
    if grasp.opening < SPREAD:
        steps = round((SPREAD - grasp.opening) / FINGER_STEP)
        scene = yield from grip(scene, above, grasp.rotation, CLOSE, steps)
    fingers = HOLD if grasp.opening < SPREAD else OPEN
    scene = yield from descend(scene, grasp.position, grasp.rotation, fingers)
    scene = yield from clamp(scene, grasp.rotation)
    return (yield from reach(scene, above, grasp.rotation, CLOSE, within=0.02, limit=25))


class Berth(Struct, frozen=True, kw_only=True):
    """Where a held thing goes."""

    spot: np.ndarray  # what its origin comes to stand above
    bottom: float  # the height that its lowest point comes down to before the fingers open
    angle: float | None = None  # how the line of the fingers lies then; None: as it is
    by_middle: bool = False  # its middle instead of its origin


def place(scene: Scene, name: str, berth: Berth) -> Script:
    """Bring the held object to its berth and let go."""

    def held() -> np.ndarray:
        origin = scene.block(name).centre if berth.by_middle else scene.position(name)
        found: np.ndarray = scene.hand - origin
        return found

    rotation = downward(nearest_angle(scene, berth.angle))
    turned_held = rotation @ scene.hand_rotation.T @ held()
    hanging = float(scene.hand[2]) - scene.block(name).bottom
    end = np.array([*(berth.spot[:2] + turned_held[:2]), berth.bottom + hanging])
    scene = yield from travel(scene, end + 0.06 * UP, rotation, CLOSE, hanging=hanging, carried=name)
    if not holding(scene, name):
        return scene
    end[:2] = berth.spot[:2] + held()[:2]  # it may have swung
    scene = yield from descend(scene, end, rotation, CLOSE, aside=0.02)
    scene = yield from grip(scene, scene.hand, rotation, OPEN, 5)
    return (yield from reach(scene, scene.hand + 0.10 * UP, rotation, OPEN, within=0.03, limit=20))


def drag(scene: Scene, name: str, spot: np.ndarray) -> Script:
    """Push something flat and hollow, such as a plate, over the table from its inside until it is at `spot`."""
    rotation = downward(math.pi / 2)
    inside = scene.position(name) + 0.008 * UP
    scene = yield from travel(scene, inside + 0.08 * UP, rotation, CLOSE, hanging=0.02)
    scene = yield from descend(scene, inside, rotation, CLOSE, limit=40)
    for _ in range(160):
        left = spot[:2] - scene.position(name)[:2]
        if np.hypot(*left) < 0.015 or math.dist(scene.hand[:2], scene.position(name)[:2]) > 0.09:
            break  # there, or slipped off
        ahead = scene.hand[:2] + left / max(float(np.hypot(*left)), 0.03) * 0.03
        scene = yield servo(scene, np.array([*ahead, inside[2] - 0.004]), rotation, CLOSE, 0.5)
    return (yield from reach(scene, scene.hand + 0.10 * UP, rotation, OPEN, within=0.03, limit=20))


def nearest_angle(scene: Scene, angle: float | None) -> float:
    """The line's angle, the way round that needs least turning; None: as it is."""
    x, y, _ = scene.hand_rotation[:, 0]
    now = math.atan2(y, x)
    return now if angle is None else now + (angle - now + math.pi / 2) % math.pi - math.pi / 2


def travel(
    scene: Scene,
    end: np.ndarray,
    rotation: np.ndarray,
    fingers: float,
    *,
    hanging: float,
    carried: str | None = None,
) -> Script:
    """Up, across and down to `end`, above everything on the way; `hanging`: how far things hang below the hand."""
    height = max(_over(scene, end, carried) + hanging + CLEAR, float(end[2]))
    start = scene.hand
    height = max(min(height, ceiling(scene, end), ceiling(scene, start)), float(end[2]))
    if math.dist(start[:2], end[:2]) > 0.02:
        if start[2] < height - 0.01:
            lifted = np.array([start[0], start[1], height])
            scene = yield from reach(scene, lifted, scene.hand_rotation, fingers, within=0.02, limit=40)
        across = np.array([end[0], end[1], height])
        scene = yield from reach(scene, across, rotation, fingers, within=0.015, limit=80)
    return (yield from reach(scene, end, rotation, fingers, within=0.01, limit=40))


def _over(scene: Scene, end: np.ndarray, carried: str | None) -> float:
    """The top of whatever stands near the line from the hand to `end`."""
    start, along = scene.hand[:2], end[:2] - scene.hand[:2]
    length = max(float(along @ along), 1e-9)
    highest = -math.inf
    for name in scene.layout.blocks:
        block = scene.block(name)
        nearest = start + along * np.clip((block.centre[:2] - start) @ along / length, 0, 1)
        if name != carried and math.dist(nearest, block.centre[:2]) < block.reach + 0.06:
            highest = max(highest, block.top)
    return highest
