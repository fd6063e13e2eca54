"""Which of the simulator's observation keys a LeRobot checkpoint reads, and what it calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from rollout.config import EvalConfig, nearest
from rollout.envs.registry import resolve
from rollout.errors import UsageError
from rollout.spaces import Fields
from rollout.types import TaskInfo

__all__ = ["Wanted", "check_task", "wanted_keys"]

IMAGES: Final = "observation.images."
IMAGE: Final = "observation.image"  # LeRobot's name for the picture of an environment that has one
EMPTY: Final = (
    "observation.images.empty_camera_"  # a camera that the policy was made with and its data lacked
)

CAMERAS: Final[Mapping[str, tuple[str, str]]] = {
    "metaworld": ("corner2", "corner2"),
    "pusht": ("image", "image"),
    "aloha": ("top", "top"),
    "libero": ("agentview", "image"),
}
"""What `observation.image` means in a family: its camera, and the name that it gives the camera."""

SINGLE: Final = frozenset({"metaworld", "pusht", "aloha"})
"""Families whose observations have one camera: that of a policy that reads one is that one, whatever it is called."""


class Wanted(Struct, frozen=True, kw_only=True):
    """One input of a checkpoint."""

    key: str  # what the simulator calls it
    given: str  # what the checkpoint's preprocessor is given it as
    name: str  # what the policy reads it as
    shape: tuple[int, ...]  # that it was trained with; images (channels, height, width)
    image: bool


def wanted_keys(
    inputs: Mapping[str, Any],
    saved: Mapping[str, str],
    rename: Mapping[str, str],
    absent: Iterable[str],
    config: EvalConfig,
    *,
    empty_cameras: bool,
) -> tuple[Wanted, ...]:
    """The inputs that a simulator has to deliver.

    `inputs` are the policy's features by name; `saved` is the rename map of the checkpoint's preprocessor, from what
    its data set calls a feature to the policy's name; `rename` is the user's, from our key to either of these names;
    `absent` are names that are left out. With `empty_cameras` the policy fills its empty cameras itself.

    Raises `UsageError` with one line where a name is unknown, or means several cameras.
    """
    givens = {name: given for given, name in saved.items()}
    absent = frozenset(absent)
    _check_names((*rename.values(), *absent), {*inputs, *saved})
    ours = {saved.get(name, name): key for key, name in rename.items()}
    read = [
        name
        for name in inputs
        if not ({name, givens.get(name)} & absent or (empty_cameras and name.startswith(EMPTY)))
    ]
    single = sum(_is_image(inputs[name]) for name in read) == 1
    return tuple(
        Wanted(
            key=ours.get(name) or _key(givens.get(name, name), _is_image(inputs[name]), single, config),
            given=givens.get(name, name),
            name=name,
            shape=tuple(inputs[name].shape),
            image=_is_image(inputs[name]),
        )
        for name in read
    )


def _check_names(names: Iterable[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(
                f"the checkpoint has no input {name!r}{nearest(name, known)} (it has {', '.join(sorted(known))})"
            )


def _is_image(feature: Any) -> bool:
    return str(getattr(feature.type, "value", feature.type)) == "VISUAL"


def _key(given: str, image: bool, single: bool, config: EvalConfig) -> str:
    if not image:
        return given
    families = dict.fromkeys(resolve(target)[0] for target in config.targets)
    keys = {_camera(given, single, family, config.options) for family in families}
    if len(keys) > 1:
        raise UsageError(
            f"{given!r} means {' and '.join(sorted(keys))} in these targets: run them one after the other"
        )
    return keys.pop()


def _camera(given: str, single: bool, family: str, options: Mapping[str, str]) -> str:
    if given != IMAGE and not (single and family in SINGLE):
        return given
    camera, name = CAMERAS.get(family, ("image", "image"))
    if family == "metaworld":
        camera = name = options.get("camera", camera)
    return IMAGES + options.get(f"camera.{camera}", name)


def check_task(settings: Any, inputs: Iterable[Wanted], task: TaskInfo, *, sized: bool) -> None:
    """Raise `UsageError` where a task's observations or actions have other shapes than the checkpoint's.

    `settings` are the policy's; with `sized`, pictures must be of the size that it was trained with.
    """
    for wanted in inputs:
        shape = getattr(task.observation_space.get(wanted.key), "shape", None)
        if shape is not None and not _fits(wanted, shape, settings, sized):
            trained = (*wanted.shape[1:], wanted.shape[0]) if wanted.image else wanted.shape
            height, width = wanted.shape[1:] if wanted.image else (0, 0)
            hint = f"; try --set height={height} --set width={width}" if wanted.image else ""
            raise UsageError(
                f"{wanted.key} of {task.suite} has shape {shape}, and the checkpoint was trained with "
                f"{trained} ({wanted.name}){hint}"
            )
    if task.action_space == Fields(()):  # not told: the request is of one of openpi's own clients
        return
    acts, takes = tuple(settings.action_feature.shape), getattr(task.action_space, "shape", None)
    if acts != takes:
        raise UsageError(
            f"{task.suite} takes actions of shape {takes}, and the checkpoint gives {acts}: it is for another robot"
        )


def _fits(wanted: Wanted, shape: tuple[int, ...], settings: Any, sized: bool) -> bool:
    if wanted.image:
        return shape == (*wanted.shape[1:], wanted.shape[0]) if sized else shape[-1] == wanted.shape[0]
    most = getattr(settings, "max_state_dim", None)
    padded = wanted.shape == (most,) and len(shape) == 1 and shape[0] <= wanted.shape[0]
    return shape == wanted.shape or padded
