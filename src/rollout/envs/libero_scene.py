"""A LIBERO scene that is reset in milliseconds, and renders only what someone looks at.

Robosuite's hard reset (the default everywhere, and what published numbers were made with) compiles the scene's model
and makes its GL context anew: 2 s an episode. Its soft reset is not the same episode. Here the hard reset runs as it
is, with every random draw, controller and gripper made anew, and only its two expensive products are used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from rollout.envs.libero_cameras import Pictures

__all__ = ["open_scene"]

# What neither robosuite nor LIBERO writes to after compiling, and what makes up nearly all of a model's size.
_CONSTANT: Final = ("tex_", "mesh_", "hfield_", "skin_", "bvh_", "oct_", "name", "paths", "text_", "tuple_")


def open_scene(bddl_file: str, pictures: Pictures, *, fast_reset: bool, **settings: Any) -> Any:
    """LIBERO's `OffScreenRenderEnv` of a task, with cameras on demand.

    `fast_reset`: its hard resets use the compiled model and the GL context again; the bits are the same.
    `settings` are those of LIBERO's `ControlEnv`. Takes seconds: the scene is compiled.
    """
    from libero.libero.envs import OffScreenRenderEnv, bddl_base_domain
    from robosuite.environments.base import REGISTERED_ENVS

    kind = _ReusedScene if fast_reset else _Scene
    problems = bddl_base_domain.TASK_MAPPING
    # Robosuite registers every class: it would keep ours, and through it a closed scene, until the next one.
    with _put_back(problems), _put_back(REGISTERED_ENVS):
        for key, base in list(
            problems.items()
        ):  # LIBERO checks the name of the class against the task's file
            problems[key] = type(base.__name__, (kind, base), {"pictures": pictures})
        return OffScreenRenderEnv(bddl_file_name=bddl_file, **settings)


@contextmanager
def _put_back(table: dict[str, Any]) -> Iterator[None]:
    """What is written into `table` meanwhile is gone afterwards."""
    before = dict(table)
    try:
        yield
    finally:
        table.clear()
        table.update(before)


class _Scene:
    """Laid over a class of LIBERO's: cameras on demand."""

    pictures: Pictures

    def _create_camera_sensors(self, cam_name: str, *args: Any, **kwargs: Any) -> Any:
        create = super()._create_camera_sensors  # type: ignore[misc]
        return self.pictures.on_demand(create)(cam_name, *args, **kwargs)


class _ReusedScene(_Scene):
    """Laid over a class of LIBERO's: its hard reset, with the compiled model and the GL context of the one before."""

    sim: Any
    _model: _PristineModel | None = None
    _context: LazyContext | None = None

    def _initialize_sim(self, xml_string: str | None = None) -> None:
        with _compiling(self._compiled):
            super()._initialize_sim(xml_string)  # type: ignore[misc]
        if self._context is None:
            self._context = LazyContext()
        self._context.show(self.sim)

    def _compiled(self, xml: str) -> Any:
        """The model of `xml`: the last one, with what was written to it undone, where that came from the same text."""
        if self._model is None or self._model.xml != xml:
            self._forget()
            self._model = _PristineModel(xml)
        return self._model.restored()

    def _destroy_sim(self) -> None:
        self.sim = None

    def close(self) -> None:
        self._forget()
        self.sim = None

    def _forget(self) -> None:
        self._model, context, self._context = None, self._context, None
        if context is not None:
            context.free()


@contextmanager
def _compiling(compiled: Any) -> Iterator[None]:
    """Meanwhile, what robosuite has MuJoCo compile comes from `compiled(xml)`."""
    from robosuite.utils.binding_utils import MjSim

    theirs = vars(MjSim)["from_xml_string"]
    MjSim.from_xml_string = staticmethod(lambda xml: MjSim(compiled(xml)))
    try:
        yield
    finally:
        MjSim.from_xml_string = theirs


class _PristineModel:
    """A compiled model and a copy of all that may be written to it."""

    def __init__(self, xml: str) -> None:
        import mujoco

        self.xml = xml
        self._model = mujoco.MjModel.from_xml_string(xml)
        self._copies = {name: array.copy() for name, array in _writable(self._model).items()}

    def restored(self) -> Any:
        """The model as it was compiled."""
        for name, copy in self._copies.items():
            getattr(self._model, name)[...] = copy
        return self._model


def _writable(model: Any) -> Mapping[str, np.ndarray]:
    names = [name for name in dir(model) if not name.startswith(("__", *_CONSTANT))]
    arrays = {name: getattr(model, name) for name in names}
    return {
        name: array
        for name, array in arrays.items()
        if isinstance(array, np.ndarray) and array.flags.writeable
    }


class LazyContext:
    """Robosuite's `MjRenderContextOffscreen`, made when the first picture is asked for, and kept over resets."""

    offscreen = True

    def __init__(self) -> None:
        import mujoco

        self.vopt = mujoco.MjvOption()
        self._context: Any = None

    def show(self, sim: Any) -> None:
        """Render `sim` from now on. Moves it as the constructor of robosuite's own context would."""
        sim.add_render_context(self)
        sim.forward()  # it shifts the solver's warm start: without it, the trajectory is another one
        self._sim = sim
        if self._context is not None:
            self._context.model, self._context.data = sim.model, sim.data

    def render(
        self, width: int, height: int, camera_id: int | None = None, segmentation: bool = False
    ) -> None:
        """As robosuite's."""
        self._made().render(width, height, camera_id, segmentation)

    def read_pixels(self, width: int, height: int, depth: bool = False, segmentation: bool = False) -> Any:
        """As robosuite's."""
        return self._made().read_pixels(width, height, depth, segmentation)

    def free(self) -> None:
        """Free the GL context, if one was made. Idempotent."""
        self._context = None

    def _made(self) -> Any:
        if self._context is None:
            from robosuite.utils.binding_utils import MjRenderContextOffscreen

            self._context = MjRenderContextOffscreen(_Still(self._sim), device_id=-1)
            self._context.vopt = self.vopt
        return self._context


class _Still:
    """A simulation that a context may show, but not move."""

    def __init__(self, sim: Any) -> None:
        self.model, self.data = sim.model, sim.data

    def forward(self) -> None:
        """Not now: it would alter the trajectory."""

    def add_render_context(self, context: Any) -> None:
        """The scene has the lazy one."""
