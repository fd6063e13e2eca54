"""Where things belong, for a scripted LIBERO expert: on plates and tables, in drawers, baskets and caddies."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from msgspec import Struct

from rollout.policies.libero_fixtures import drawer_of
from rollout.policies.libero_scene import Scene
from rollout.policies.libero_skills import Berth

__all__ = ["Target", "berth", "lies"]

HOLLOW: Final = ("bowl", "basket", "tray")  # what is put into them falls the last centimetre
PALM: Final = 0.03  # from the point between the fingertips up to the palm, with some room
OUTWARDS: Final = 0.022  # in a lower drawer: away from the handles above it
DEEPER: Final = np.array([0.0, 0.0, 0.01])


class Target(Struct, frozen=True, kw_only=True):
    """A region, or an object, that something goes to."""

    name: str
    share: float = 0.0  # where across it, -1 to 1: in the middle, unless several things go there


def lies(scene: Scene, verb: str, name: str, target: str) -> bool:
    """Whether an object lies `in` or `on` a region or an object, as far as poses tell (contact they do not)."""
    if target not in scene.layout.regions:
        apart = scene.position(name) - scene.position(target)
        return math.hypot(apart[0], apart[1]) < 0.03 and 0 <= apart[2] < 0.06
    return (_inside if verb == "in" else _above)(scene, target, name)


def _inside(scene: Scene, region: str, name: str) -> bool:
    """As LIBERO's SiteObject.in_box."""
    half = np.abs(scene.rotation(region) @ scene.value(f"{region}.size"))
    apart = scene.position(name) - scene.position(region)
    return bool((np.abs(apart) < half + DEEPER).all() and apart[2] < half[2])


def _above(scene: Scene, region: str, name: str) -> bool:
    """As LIBERO's SiteObject.under."""
    size = scene.value(f"{region}.size")
    apart = scene.rotation(region) @ (scene.position(name) - scene.position(region))
    return bool((np.abs(apart[:2]) < size[:2]).all() and size[2] - 0.005 < apart[2] < size[2] + 0.1)


def berth(scene: Scene, name: str, target: Target) -> Berth:
    """Where the object that is held goes."""
    where, owner = target.name, scene.owner(target.name)
    spot = scene.position(where)
    if where not in scene.layout.regions:
        hollow = any(word in where for word in HOLLOW)
        return Berth(spot=spot, bottom=scene.block(where).top - 0.015 if hollow else float(spot[2]) + 0.012)
    if owner is not None and "contain" in where:
        return _caddy(scene, where, owner) if "caddy" in where else _basket(scene, name, where, owner)
    spot = spot + 0.6 * target.share * scene.value(f"{where}.size")[0] * scene.rotation(where)[:, 0]
    drawer = drawer_of(scene, where)
    if drawer is not None:
        return _drawer(scene, where, drawer)
    top = scene.block(owner).top if owner is not None else -math.inf
    flat = 0 <= top - spot[2] < 0.06  # a flat top, such as a stove's, whose region lies inside it
    return Berth(spot=spot, bottom=top + 0.008 if flat else scene.hollow(where).bottom + 0.012)


def _drawer(scene: Scene, region: str, drawer: str) -> Berth:
    spot, bottom = scene.position(region), scene.hollow(region).bottom + 0.012
    if "top" in region:
        return Berth(spot=spot, bottom=bottom)
    side, out = scene.rotation(drawer)[:, 0], -scene.rotation(drawer)[:, 1]
    return Berth(spot=spot + OUTWARDS * out, bottom=bottom, angle=math.atan2(side[1], side[0]))


def _caddy(scene: Scene, region: str, caddy: str) -> Berth:
    """Its compartments are narrow along its first axis, and so are books between the fingers."""
    narrow = scene.rotation(caddy)[:, 0]
    return Berth(
        spot=scene.position(region),
        bottom=scene.block(caddy).top - 0.03,
        angle=math.atan2(narrow[1], narrow[0]),
        by_middle=True,
    )


def _basket(scene: Scene, name: str, region: str, basket: str) -> Berth:
    """As deep as the palm comes, above the rim: a tall carton dropped from high up hangs on a finger."""
    hanging = float(scene.hand[2]) - scene.block(name).bottom
    bottom = max(scene.hollow(region).bottom + 0.015, scene.block(basket).top - PALM - max(hanging, 0.0))
    return Berth(spot=scene.position(region), bottom=bottom, by_middle=True)
