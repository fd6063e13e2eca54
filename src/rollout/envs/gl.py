"""GL chosen late: simulators are imported with rendering off, and get their worker's back end after the fork.

MuJoCo, robosuite and dm_control choose their back end when they are imported, by environment variables that differ
from worker to worker; for some of them the import opens an EGL display, which no fork survives. The forkserver
therefore imports them under `rendering_off`, and a worker calls `choose_again` before it makes its first context.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

__all__ = ["NO_WINDOW", "VARIABLES", "abandon_contexts", "choose_again", "rendering_off"]

VARIABLES: Final = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID", "CUDA_VISIBLE_DEVICES")
"""What the choice depends on."""

NO_WINDOW: Final = "glx"
"""A MUJOCO_GL for `rendering_off` around an import of robosuite, which takes "off" for an oversight and loads EGL. It
stands for GLFW, which loads nothing before a window is opened."""

_FREED_AT_THE_END: Final = (
    ("mujoco.egl", "GLContext"),
    ("mujoco.osmesa", "GLContext"),
    ("mujoco.renderer", "Renderer"),
    ("robosuite.renderers.context.egl_context", "EGLGLContext"),
    ("robosuite.utils.binding_utils", "MjRenderContext"),
    ("gymnasium.envs.mujoco.mujoco_rendering", "BaseRender"),
)
"""Classes whose destructors free a GL context."""


@contextmanager
def rendering_off(mujoco_gl: str = "off") -> Iterator[None]:
    """What is imported meanwhile loads no GL. `os.environ` is as before afterwards, in all of `VARIABLES`."""
    before = {name: os.environ.get(name) for name in VARIABLES}
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ["MUJOCO_GL"] = mujoco_gl
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def choose_again() -> None:
    """Have the modules that are imported already choose by the present `os.environ`, as a new import would.

    To be called before the first GL context is made. Does nothing where they chose by the same MUJOCO_GL, or where
    PyOpenGL is loaded, which cannot change its platform any more. Raises what a new import would raise. Gymnasium's
    renderer needs nothing: it chooses whenever one is made.
    """
    if "OpenGL.platform" not in sys.modules:
        _mujoco()
        _robosuite()
        _dm_control()


def abandon_contexts() -> None:
    """Leave every GL context to the end of the process, which is at hand (for `atexit`).

    What an exception on its way out still holds is destroyed after the EGL display: its destructors would print
    tracebacks.
    """
    for module, name in _FREED_AT_THE_END:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and "__del__" in vars(kind):
            del kind.__del__


def _mujoco() -> None:
    # From mujoco 3.4 on in the first of these, of which the second is a copy.
    modules = [sys.modules.get(f"mujoco.{name}gl_context") for name in ("rendering.classic.", "")]
    chosen = next((module for module in modules if module is not None), None)
    if chosen is None or _up_to_date(chosen):
        return
    importlib.reload(chosen)  # in place: the renderer looks into this very module
    if hasattr(chosen, "GLContext"):  # not where rendering is off for good
        for name in {"mujoco", "mujoco.gl_context"} & sys.modules.keys():
            sys.modules[name].GLContext = chosen.GLContext  # type: ignore[attr-defined]


def _robosuite() -> None:
    chosen = sys.modules.get("robosuite.utils.binding_utils")
    if chosen is None or _up_to_date(chosen):
        return
    # Not in place: others hold its classes, which must stay what they are.
    assert chosen.__spec__ is not None
    assert chosen.__spec__.loader is not None
    fresh = importlib.util.module_from_spec(chosen.__spec__)
    chosen.__spec__.loader.exec_module(fresh)
    for name in ("GLContext", "_MUJOCO_GL"):
        setattr(chosen, name, getattr(fresh, name))


def _dm_control() -> None:
    chosen = sys.modules.get("dm_control._render")
    if chosen is not None and _wanted() != chosen.BACKEND:
        importlib.reload(chosen)  # in place, as for MuJoCo


def _up_to_date(chosen: ModuleType) -> bool:
    return bool(getattr(chosen, "_MUJOCO_GL", None) == _wanted())


def _wanted() -> str:
    return os.environ.get("MUJOCO_GL", "").lower().strip()
