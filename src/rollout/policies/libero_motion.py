"""How a scripted LIBERO expert moves the hand: scripts that yield one action a step and get the next scene back."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Final, TypeAlias

import numpy as np

from rollout.policies.libero_scene import Scene

__all__ = [
    "CLOSE",
    "HOLD",
    "OPEN",
    "Script",
    "ceiling",
    "clamp",
    "descend",
    "downward",
    "grip",
    "reach",
    "servo",
    "stretch",
    "tilted",
    "turned",
]

Script: TypeAlias = Generator[np.ndarray, Scene, Scene]
"""Yields actions, float32 (7,); is sent the scene after each; returns the last one."""

OPEN: Final = -1.0
CLOSE: Final = 1.0
HOLD: Final = 0.0  # the fingers stay where they are

# What an action of 1 asks for (robosuite 1.4, controllers/config/osc_pose.json).
STEP_M: Final = 0.05
STEP_RAD: Final = 0.5
# Of the Panda: shoulder to wrist with the elbow nearly straight; the hand below and beyond the wrist. Metres.
REACH: Final = 0.68
FURTHEST: Final = 0.70
WRIST_ABOVE: Final = 0.21
WRIST_ACROSS: Final = 0.088
GAIN: Final = 2.2  # of the error asked for at once: the controller covers about a third of that in a step


def downward(angle: float) -> np.ndarray:
    """The hand pointing down, its fingers on a line at `angle` radians from the x axis: rotation matrix (3, 3)."""
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, s, 0.0], [s, -c, 0.0], [0.0, 0.0, -1.0]])


def tilted(pointing: np.ndarray, fingers: np.ndarray) -> np.ndarray:
    """The hand pointing along `pointing`, its fingers on the line `fingers` (made perpendicular): (3, 3)."""
    z = pointing / np.linalg.norm(pointing)
    x = fingers - (fingers @ z) * z
    x = x / np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z], axis=1)


def turned(wanted: np.ndarray, current: np.ndarray) -> np.ndarray:
    """Axis times angle (3,) of the rotation, in the world's frame, that leads from `current` to `wanted`."""
    rotation = wanted @ current.T
    axis = np.array(
        [rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]]
    )
    sine = float(np.linalg.norm(axis))
    angle = math.atan2(sine, float(np.trace(rotation)) - 1)
    if math.pi - angle < 1e-4:  # half a turn: the axis is what stays
        fixed = rotation + np.eye(3)
        longest = fixed[:, int(np.argmax(np.diag(fixed)))]
        half: np.ndarray = longest / np.linalg.norm(longest) * angle
        return half
    if sine < 1e-9:
        return np.zeros(3)
    found: np.ndarray = axis / sine * angle
    return found


def servo(
    scene: Scene, position: np.ndarray, rotation: np.ndarray, fingers: float, speed: float = 1.0
) -> np.ndarray:
    """One action towards a pose of the hand: float32 (7,), on a straight line, `speed` at most (1: all there is)."""
    if rotation[2, 2] < -0.9:
        position = _reachable(scene, position)
    move = GAIN * (position - scene.hand) / STEP_M
    turn = GAIN * turned(rotation, scene.hand_rotation) / STEP_RAD
    move *= min(1.0, speed / max(float(np.abs(move).max()), 1e-9))
    turn *= min(1.0, 1.0 / max(float(np.abs(turn).max()), 1e-9))
    return np.array([*move, *turn, fingers], np.float32)


def reach(
    scene: Scene,
    position: np.ndarray,
    rotation: np.ndarray,
    fingers: float,
    *,
    within: float = 0.006,
    speed: float = 1.0,
    limit: int = 80,
) -> Script:
    """Move until the hand is `within` metres of `position` and turned, or for `limit` steps, or until it is stuck."""
    best, stuck = math.inf, 0
    for _ in range(limit):
        distance = float(np.linalg.norm(position - scene.hand))
        angle = float(np.linalg.norm(turned(rotation, scene.hand_rotation)))
        if distance < within and angle < 0.08:
            break
        error = distance + 0.1 * angle
        stuck = 0 if error < best - 5e-4 else stuck + 1
        best = min(best, error)
        if stuck > 8:
            break
        scene = yield servo(scene, position, rotation, fingers, speed)
    return scene


def descend(
    scene: Scene,
    end: np.ndarray,
    rotation: np.ndarray,
    fingers: float,
    *,
    aside: float = 0.014,
    speed: float = 0.7,
    limit: int = 60,
) -> Script:
    """Straight down to `end`; further than `aside` metres from the line, the hand comes back to it first."""
    drift, best, stuck = np.zeros(2), math.inf, 0
    for _ in range(limit):
        error = end - scene.hand
        off = float(np.hypot(error[0], error[1]))
        if abs(float(error[2])) < 0.004 and off < 0.006:
            break
        distance = abs(float(error[2])) + off
        stuck = 0 if distance < best - 5e-4 else stuck + 1
        best = min(best, distance)
        if stuck > 10:
            break
        drift = np.clip(drift + 0.07 * error[:2], -0.02, 0.02)  # going down pushes a stretched arm outwards
        pace = speed * min(1.0, max(0.0, 2 * (aside - off) / aside))
        step = float(np.clip(error[2], -pace * STEP_M / GAIN, pace * STEP_M / GAIN))
        scene = yield servo(scene, scene.hand + np.array([*(error[:2] + drift), step]), rotation, fingers)
    return scene


def stretch(scene: Scene, point: np.ndarray) -> float:
    """Distance of shoulder and wrist in metres when the hand, pointing down, is at `point`."""
    shoulder = scene.shoulder
    across = max(math.dist(point[:2], shoulder[:2]) - WRIST_ACROSS, 0.0)
    return math.hypot(across, float(point[2]) + WRIST_ABOVE - float(shoulder[2]))


def _reachable(scene: Scene, point: np.ndarray) -> np.ndarray:
    """`point`, or the nearest at its height that does not straighten the elbow: beyond, the arm is stuck."""
    shoulder = scene.shoulder
    above = float(point[2]) + WRIST_ABOVE - float(shoulder[2])
    limit = math.sqrt(max(FURTHEST**2 - above**2, 0.0)) + WRIST_ACROSS
    apart = point[:2] - shoulder[:2]
    scale = min(1.0, limit / max(float(np.hypot(*apart)), 1e-9))
    return np.array([*(shoulder[:2] + scale * apart), point[2]])


def ceiling(scene: Scene, point: np.ndarray) -> float:
    """How high the hand, pointing down, may go above `point`: beyond, the elbow is straight and the arm is stuck."""
    shoulder = scene.shoulder
    across = max(math.dist(point[:2], shoulder[:2]) - WRIST_ACROSS, 0.0)
    return float(shoulder[2]) - WRIST_ABOVE + math.sqrt(max(REACH**2 - across**2, 0.0))


def clamp(scene: Scene, rotation: np.ndarray) -> Script:
    """Close the fingers where the hand is, until they move no more."""
    position, width = scene.hand, math.inf
    for step in range(16):
        if step > 5 and width - scene.opening < 5e-4:
            break
        width = scene.opening
        scene = yield servo(scene, position, rotation, CLOSE)
    return scene


def grip(scene: Scene, position: np.ndarray, rotation: np.ndarray, fingers: float, steps: int) -> Script:
    """Hold the pose for `steps` steps while the fingers move."""
    for _ in range(steps):
        scene = yield servo(scene, position, rotation, fingers)
    return scene
