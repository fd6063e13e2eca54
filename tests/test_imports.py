"""Who may import whom: downward only, and nothing heavy where it does not belong (docs/architecture.md)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rollout

SOURCE = Path(rollout.__file__).parent
HEAVY = ("torch", "mujoco", "metaworld", "libero", "robosuite", "gymnasium", "numpy", "rich", "av", "lerobot")

# From the bottom up. A module may import, when it is imported itself, from its own row and the rows above it here.
LAYERS = (
    ("errors",),
    ("values", "spaces"),
    ("types", "config", "resources", "probe", "graphics"),
    (
        "plan",
        "protocols",
        "results",
        "envs.base",
        "envs.registry",
        "policies.base",
        "display.base",
        "rendering",
    ),
    ("envs", "display", "policies"),
    ("sim",),
    ("engine",),
    ("tune.curve", "tune.network", "tune.forecast", "tune.recommend", "tune.growth"),
    ("evaluation", "growing", "opening", "timing"),
    ("api", "bench", "doctor", "listing", "arguments", "serve", "stop", "streams", "verify"),
    ("tune",),
    ("cli", "testing"),
)


def modules() -> list[str]:
    return [
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py"
    ]


def layer(module: str) -> int:
    """The row of the longest matching prefix."""
    found = [
        (len(name), row)
        for row, names in enumerate(LAYERS)
        for name in names
        if module == name or module.startswith(name + ".")
    ]
    assert found, f"{module} stands in no layer"
    return max(found)[1]


def imported_at_import(module: str) -> set[str]:
    """The package's own modules that `module` imports at its top level, `TYPE_CHECKING` blocks left out."""
    tree = ast.parse((SOURCE / (module.replace(".", "/") + ".py")).read_text())
    return {
        node.module.removeprefix("rollout.")
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("rollout.")
    }


@pytest.mark.parametrize("module", modules())
def test_imports_go_downward_only(module: str) -> None:
    upward = {other for other in imported_at_import(module) if layer(other) > layer(module)}
    assert not upward


def loaded_after(code: str) -> set[str]:
    """What a fresh interpreter has loaded after `code`: of `HEAVY`, and of this package."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    names = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    return {name for name in names if name in HEAVY or name.startswith("rollout")}


def test_importing_rollout_loads_nothing_else() -> None:
    assert loaded_after("import rollout") == {"rollout"}


def test_every_public_name_exists_and_loads_no_simulator_and_no_torch() -> None:
    loaded = loaded_after("import rollout\nfor name in rollout.__all__: getattr(rollout, name)")
    assert len(rollout.__all__) <= 12
    assert list(rollout.__all__) == sorted(rollout.__all__)
    assert loaded & set(HEAVY) == {"numpy"}


def test_the_child_side_loads_no_torch_no_rich_and_no_engine() -> None:
    adapters = "\n".join(f"import rollout.{name}" for name in modules() if name.startswith("envs."))
    loaded = loaded_after(f"import rollout.sim.server, rollout.sim.forkserver\n{adapters}")
    assert not loaded & {"torch", "rich", "mujoco", "metaworld", "libero", "robosuite", "av"}
    assert not {name for name in loaded if name.startswith(("rollout.engine", "rollout.api", "rollout.cli"))}


def test_the_parent_side_loads_no_simulator() -> None:
    loaded = loaded_after(
        "import rollout.cli, rollout.api, rollout.doctor, rollout.listing, rollout.display.live"
    )
    assert not loaded & {"torch", "mujoco", "metaworld", "libero", "robosuite", "av"}


@pytest.mark.metaworld
def test_an_evaluation_with_a_built_in_policy_loads_no_simulator_in_the_parent() -> None:
    loaded = loaded_after(
        "import rollout\nrollout.run('random', 'metaworld:reach-v3', episodes=1, horizon=2, workers=1)"
    )
    assert not loaded & {"torch", "mujoco", "metaworld", "libero", "robosuite", "av"}
