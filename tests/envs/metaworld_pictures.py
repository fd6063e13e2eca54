"""Runs in an interpreter of its own: hashes of the pictures of one push-v3 episode, as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from rollout.envs.metaworld import MetaWorldSimulator
from rollout.types import EpisodeSpec, ObservationRequest

N_STEPS = 12
SIZE = 96


def actions() -> np.ndarray:
    return np.random.default_rng(3).uniform(-1, 1, (N_STEPS, 4)).astype(np.float32)


def sha1(picture: np.ndarray) -> str:
    return hashlib.sha1(np.ascontiguousarray(picture).tobytes()).hexdigest()


def spec(seed: int) -> EpisodeSpec:
    return EpisodeSpec(suite="metaworld:push-v3", task="push-v3", task_id=0, episode=0, seed=seed, horizon=50)


def plain() -> list[str]:
    """LeRobot's way, written on Meta-World itself: every step rendered, both axes flipped."""
    import metaworld

    benchmark = metaworld.MT1("push-v3", seed=42)
    env = benchmark.train_classes["push-v3"](
        render_mode="rgb_array", camera_name="corner2", width=SIZE, height=SIZE
    )
    env.set_task(benchmark.train_tasks[0])
    env.model.cam_pos[2] = [0.75, 0.075, 0.7]
    env.reset()
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    env.seed(7)
    env.reset()
    hashes = [sha1(np.flip(env.render(), (0, 1)))]
    for action in actions():
        env.step(action)
        hashes.append(sha1(np.flip(env.render(), (0, 1))))
    env.close()
    return hashes


def ours(*, filmed: bool) -> list[str | None]:
    """Observed at every fourth step, after another episode; `filmed`: and rendered for the video at each."""
    size = str(SIZE)
    simulator = MetaWorldSimulator(
        MetaWorldSimulator.describe("push-v3", {}), 0, {"height": size, "width": size}
    )
    simulator.build()
    key = "observation.images.corner2"
    request = ObservationRequest(keys=(key,))

    simulator.reset(spec(1), request)
    for action in actions():
        simulator.step(-action, True)
    seen: list[str | None] = [sha1(simulator.reset(spec(7), request)[key])]
    for index, action in enumerate(actions(), 1):
        step = simulator.step(action, index % 4 == 0)
        picture = step.observation[key] if step.observation else None
        if filmed:
            frame = simulator.render()
            assert picture is None or frame is picture  # no second rendering
            picture = frame
        seen.append(None if picture is None else sha1(picture))
    simulator.close()
    return seen


def blind() -> list[str]:
    """The GL libraries that an episode without pictures loads."""
    simulator = MetaWorldSimulator(MetaWorldSimulator.describe("push-v3", {}), 0, {})
    simulator.build()
    simulator.reset(spec(7), ObservationRequest(keys=("observation.environment_state", "task")))
    for action in actions():
        simulator.step(action, True)
    simulator.close()
    mapped = Path("/proc/self/maps").read_text()
    return [name for name in ("libOSMesa", "libEGL", "libGL.", "libGLX") if name in mapped]


if __name__ == "__main__":
    modes = {
        "plain": plain,
        "ours": lambda: ours(filmed=False),
        "filmed": lambda: ours(filmed=True),
        "blind": blind,
    }
    print(json.dumps(modes[sys.argv[1]]()))
