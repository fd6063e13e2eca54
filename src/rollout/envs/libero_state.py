"""LIBERO's full state as one vector with a name for every element: what a scripted expert reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

import numpy as np
from msgspec import Struct

__all__ = ["EnvironmentState"]

AXES: Final = ("x", "y", "z")
QUATERNION: Final = ("x", "y", "z", "w")
BASE: Final = "robot0_base"
HAND: Final = "gripper0_grip_site"  # the point that the controller moves: between the fingertips
FINGERS: Final = ("gripper0_finger_joint1", "gripper0_finger_joint2")
CORNERS: Final = np.array(list(product((-1, 1), repeat=3)), float)


class EnvironmentState:
    """The state of one LIBERO scene (its BDDL problem, `OffScreenRenderEnv(...).env`).

    `names` has one name an element, in an order that depends on the task alone:

    - `robot0_base_pos.<x|y|z>`: where the arm stands;
    - `robot0_eef_pos.<x|y|z>`, `robot0_eef_quat.<x|y|z|w>`, `robot0_gripper_qpos.<0|1>`: the hand;
    - `<object>.pos.*`, `.quat.*`, `.low.*`, `.high.*` for every object and fixture: the pose of its body, and the
      box around what collides, in the body's frame (without the parts that move on a joint);
    - `<joint>.qpos`, and `.pos.*`, `.quat.*`, `.low.*`, `.high.*` of the part that moves on it (a drawer, a door, a
      knob), `.handle.*`: the middle of that part's foremost piece, in the world;
    - `<region>.pos.*`, `.quat.*`, `.size.*`: every region of the BDDL file; half sizes, in the region's frame.

    Metres and radians, in the world's frame unless said otherwise. `goal` is the BDDL goal, a conjunction of
    predicates such as `("on", "akita_black_bowl_1", "plate_1")`.
    """

    names: tuple[str, ...]
    goal: tuple[tuple[str, ...], ...]

    def __init__(self, scene: Any) -> None:
        self._scene = scene
        self._joints = tuple(
            joint for fixture in scene.fixtures_dict.values() for joint in fixture.joints or ()
        )
        self.names = tuple(_names((*scene.objects_dict, *scene.fixtures_dict), self._joints, self._sites))
        self.goal = tuple(tuple(predicate) for predicate in scene.parsed_problem["goal_state"])
        self._sim: Any = None  # what `_lookup` belongs to; a hard reset makes a new one
        self._lookup: _Lookup

    @property
    def _sites(self) -> Mapping[str, Any]:
        sites: Mapping[str, Any] = self._scene.object_sites_dict
        return sites

    def read(self) -> np.ndarray:
        """The present state: float32 (len(names),)."""
        if self._scene.sim is not self._sim:
            self._lookup, self._sim = self._find(self._scene.sim), self._scene.sim
        found, data = self._lookup, self._sim.data._data
        parts = [
            data.xpos[found.base],
            data.site_xpos[found.hand],
            _quaternion(data.site_xmat[found.hand]),
            data.qpos[found.fingers],
        ]
        for part in found.parts:
            rotation = data.xmat[part.body].reshape(3, 3)
            if part.qpos is not None:
                parts.append(data.qpos[part.qpos : part.qpos + 1])
            parts += [data.xpos[part.body], data.xquat[part.body][[1, 2, 3, 0]], part.low, part.high]
            if part.qpos is not None:
                parts.append(data.xpos[part.body] + rotation @ part.handle)
        for site, size in found.sites:
            parts += [data.site_xpos[site], _quaternion(data.site_xmat[site]), size]
        return np.concatenate(parts).astype(np.float32)

    def _find(self, sim: Any) -> _Lookup:
        model = sim.model
        bodies = [
            self._scene.obj_body_id[name] for name in (*self._scene.objects_dict, *self._scene.fixtures_dict)
        ]
        joints = [model.joint_name2id(joint) for joint in self._joints]
        raw = model._model
        return _Lookup(
            base=model.body_name2id(BASE),
            hand=model.site_name2id(HAND),
            fingers=[int(raw.jnt_qposadr[model.joint_name2id(joint)]) for joint in FINGERS],
            parts=[
                *(_measure(raw, body, None) for body in bodies),
                *(_measure(raw, raw.jnt_bodyid[joint], int(raw.jnt_qposadr[joint])) for joint in joints),
            ],
            sites=[
                (model.site_name2id(name), np.asarray(site.size, float)) for name, site in self._sites.items()
            ],
        )


class _Part(Struct, frozen=True):
    body: int
    qpos: int | None  # where its joint's position stands; None for an object or a fixture as a whole
    low: np.ndarray  # of the box around what collides, in the body's frame
    high: np.ndarray
    handle: np.ndarray


class _Lookup(Struct, frozen=True, kw_only=True):
    base: int
    hand: int
    fingers: list[int]
    parts: list[_Part]
    sites: list[tuple[int, np.ndarray]]


def _names(bodies: tuple[str, ...], joints: tuple[str, ...], sites: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"robot0_base_pos.{axis}" for axis in AXES)
    yield from (f"robot0_eef_pos.{axis}" for axis in AXES)
    yield from (f"robot0_eef_quat.{axis}" for axis in QUATERNION)
    yield from (f"robot0_gripper_qpos.{finger}" for finger in range(len(FINGERS)))
    for name in (*bodies, *joints):
        if name in joints:
            yield f"{name}.qpos"
        yield from _pose_names(name, ("low", "high", "handle") if name in joints else ("low", "high"))
    for name in sites:
        yield from _pose_names(name, ("size",))


def _pose_names(name: str, vectors: tuple[str, ...]) -> Iterator[str]:
    yield from (f"{name}.pos.{axis}" for axis in AXES)
    yield from (f"{name}.quat.{axis}" for axis in QUATERNION)
    for vector in vectors:
        yield from (f"{name}.{vector}.{axis}" for axis in AXES)


def _measure(model: Any, body: int, qpos: int | None) -> _Part:
    """The box around a body's geometry, from the model alone, so that it is the same whatever the pose."""
    boxes = [
        _box(model, geom, body)
        for geom in range(model.ngeom)
        if (model.geom_contype[geom] or model.geom_conaffinity[geom])
        and _moves_with(model, int(model.geom_bodyid[geom]), body)
    ]
    if not boxes:
        return _Part(int(body), qpos, np.zeros(3), np.zeros(3), np.zeros(3))
    low = np.min([corners.min(0) for corners in boxes], axis=0)
    high = np.max([corners.max(0) for corners in boxes], axis=0)
    foremost = min(boxes, key=lambda corners: float(corners.mean(0)[1]))
    return _Part(int(body), qpos, low, high, foremost.mean(0))


def _moves_with(model: Any, body: int, root: int) -> bool:
    """Whether `body` is `root` or hangs on it without a joint between."""
    while body != root:
        if body == 0 or model.body_jntnum[body]:
            return False
        body = int(model.body_parentid[body])
    return True


def _box(model: Any, geom: int, root: int) -> np.ndarray:
    """The corners of a geometry's box, in the frame of `root`: (8, 3)."""
    centre, half = model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]
    corners = model.geom_pos[geom] + (centre + half * CORNERS) @ _matrix(model.geom_quat[geom]).T
    body = int(model.geom_bodyid[geom])
    while body != root:
        corners = model.body_pos[body] + corners @ _matrix(model.body_quat[body]).T
        body = int(model.body_parentid[body])
    found: np.ndarray = corners
    return found


def _matrix(quaternion: np.ndarray) -> np.ndarray:
    """Rotation matrix of MuJoCo's (w, x, y, z)."""
    import mujoco

    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)


def _quaternion(matrix: np.ndarray) -> np.ndarray:
    """(x, y, z, w) of a rotation matrix (9,)."""
    import mujoco

    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, matrix)
    return quaternion[[1, 2, 3, 0]]
