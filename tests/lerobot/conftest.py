"""These tests need LeRobot, and so Python 3.12: skipped elsewhere, or failed where `ROLLOUT_TEST_REQUIRE` says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def missing() -> str | None:
    try:
        version("lerobot")
    except PackageNotFoundError:
        return "lerobot: not installed; run: pip install 'rollout-engine[lerobot]' (Python 3.12 or newer)"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    reason = missing() if HERE in item.path.parents else None
    if reason is None:
        return
    if "lerobot" in os.environ.get("ROLLOUT_TEST_REQUIRE", "").split(","):
        pytest.fail(f"ROLLOUT_TEST_REQUIRE names lerobot: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is fetched from a hub: a test that tried to would fail."""
    if missing() is None:
        import huggingface_hub.constants
        import torch

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # tiny nets, and other tests beside
        yield
        torch.set_num_threads(threads)
    else:
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The checkpoint called so in `tiny_policies.POLICIES`, made once."""
    from tiny_policies import POLICIES

    made: dict[str, Path] = {}
    with pytest.MonkeyPatch.context() as patch:  # the sizes of pi0's network, until the last test

        def of(name: str) -> Path:
            if name not in made:
                made[name] = POLICIES[name](tmp_path_factory.mktemp("checkpoint"), patch)
            return made[name]

        yield of
