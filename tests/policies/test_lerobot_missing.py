"""Without LeRobot, `lerobot:…` is one line that says what to install."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

import rollout
from rollout.errors import UsageError


def installed() -> bool:
    try:
        version("lerobot")
    except PackageNotFoundError:
        return False
    return True


@pytest.mark.skipif(installed(), reason="LeRobot is installed")
def test_a_run_without_lerobot_ends_with_a_line_that_says_what_to_install() -> None:
    needed = "pip install" if sys.version_info >= (3, 12) else "LeRobot needs Python 3.12"
    with pytest.raises(UsageError, match=needed) as caught:
        rollout.run("lerobot:someone/something", "gym:toys:toy/Count-v0", episodes=1, workers=1)
    assert "\n" not in str(caught.value)
    assert "docs/lerobot.md" in str(caught.value)


def test_lerobot_without_a_checkpoint_is_told_how_to_name_one() -> None:
    with pytest.raises(UsageError, match="lerobot:PATH_OR_REPO"):
        rollout.run("lerobot", "gym:toys:toy/Count-v0", episodes=1, workers=1)
