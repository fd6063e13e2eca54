"""What a scripted LIBERO expert sees: poses and sizes by name, out of the simulator's state vector."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct

__all__ = ["Block", "Layout", "Scene"]

SHOULDER: Final = np.array([0.0, 0.0, 0.333])  # above the base of a Panda


class Block(Struct, frozen=True, kw_only=True):
    """The box around an object or a part: centre, rotation (its columns are the box's axes), half sizes."""

    centre: np.ndarray
    rotation: np.ndarray
    half: np.ndarray

    @property
    def rise(self) -> float:
        """Half of its height as it stands."""
        return float(np.abs(self.rotation[2]) @ self.half)

    @property
    def top(self) -> float:
        return float(self.centre[2]) + self.rise

    @property
    def bottom(self) -> float:
        return float(self.centre[2]) - self.rise

    @property
    def reach(self) -> float:
        """Radius of the circle around its footprint."""
        return math.hypot(*(np.abs(self.rotation[:2]) @ self.half))

    def sides(self) -> list[tuple[np.ndarray, float]]:
        """The two axes that lie flattest: direction (3,) within the horizontal plane, and half width."""
        flat = sorted(range(3), key=lambda axis: abs(float(self.rotation[2, axis])))[:2]
        found = []
        for axis in flat:
            direction = self.rotation[:, axis] * (1, 1, 0)
            found.append((direction / np.linalg.norm(direction), float(self.half[axis])))
        return found

    def holds(self, points: np.ndarray, margin: float) -> np.ndarray:
        """Which of `points` (n, 3) lie within `margin` metres of the box: bool (n,)."""
        local = np.abs((points - self.centre) @ self.rotation)
        inside: np.ndarray = (local <= self.half + margin).all(axis=1)
        return inside


class Layout:
    """Where each quantity stands in the vector, from the names of its elements; made once an episode."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._slices: dict[str, slice] = {}
        position = 0
        for quantity, elements in groupby(names, key=lambda name: name.rpartition(".")[0]):
            size = len(list(elements))
            self._slices[quantity] = slice(position, position + size)
            position += size
        self.blocks = tuple(name for name in self._with(".low") if f"{name}.low" in self._slices)
        self.joints = tuple(name for name in self.blocks if f"{name}.handle" in self._slices)
        self.regions = tuple(self._with(".size"))

    def _with(self, ending: str) -> Iterator[str]:
        return (name.removesuffix(ending) for name in self._slices if name.endswith(ending))

    def read(self, vector: np.ndarray) -> Scene:
        """The scene at one moment."""
        return Scene(self, vector.astype(np.float64))

    def slice(self, quantity: str) -> slice:
        """Where `quantity` stands. Raises `KeyError`."""
        return self._slices[quantity]


class Scene:
    """The scene at one moment. Positions in metres, in the world's frame."""

    def __init__(self, layout: Layout, vector: np.ndarray) -> None:
        self.layout = layout
        self._vector = vector

    def value(self, quantity: str) -> np.ndarray:
        """A quantity by its name without the axis, e.g. `plate_1.pos`: (3,)."""
        return self._vector[self.layout.slice(quantity)]

    def position(self, name: str) -> np.ndarray:
        return self.value(f"{name}.pos")

    def rotation(self, name: str) -> np.ndarray:
        """Rotation matrix (3, 3) of an object, a part or a region."""
        return _matrix(self.value(f"{name}.quat"))

    @property
    def hand(self) -> np.ndarray:
        """The point between the fingertips."""
        return self.value("robot0_eef_pos")

    @property
    def shoulder(self) -> np.ndarray:
        """The point that the arm's reach is measured from."""
        found: np.ndarray = self.value("robot0_base_pos") + SHOULDER
        return found

    @property
    def hand_rotation(self) -> np.ndarray:
        """Columns: the line on which the fingers move, the third direction, where the hand points."""
        return _matrix(self.value("robot0_eef_quat"))

    @property
    def opening(self) -> float:
        """Distance of the fingers, 0 to 0.08."""
        left, right = self.value("robot0_gripper_qpos")
        return float(left - right)

    def joint(self, name: str) -> float:
        """The position of a drawer, a door or a knob."""
        return float(self._vector[self.layout.slice(name)][0])

    def block(self, name: str) -> Block:
        """The box around an object, a fixture without its moving parts, or a moving part."""
        low, high = self.value(f"{name}.low"), self.value(f"{name}.high")
        rotation = self.rotation(name)
        centre = self.position(name) + rotation @ ((low + high) / 2)
        return Block(centre=centre, rotation=rotation, half=(high - low) / 2)

    def hollow(self, region: str) -> Block:
        """A region's box."""
        half = self.value(f"{region}.size")
        return Block(centre=self.position(region), rotation=self.rotation(region), half=half)

    def owner(self, region: str) -> str | None:
        """The object or fixture that a region belongs to; None for a region of the table or the floor."""
        owners = [name for name in self.layout.blocks if region.startswith(f"{name}_")]
        return max(owners, key=len, default=None)


def _matrix(quaternion: np.ndarray) -> np.ndarray:
    x, y, z, w = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
