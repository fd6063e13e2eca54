"""What `rollout list` prints of what is not installed."""

from __future__ import annotations

import io
from importlib.metadata import EntryPoint

import pytest
from rich.console import Console

from rollout import listing
from rollout.envs.base import Requirement
from rollout.envs.metaworld import MetaWorldSimulator


class Absent(MetaWorldSimulator):
    requires = (Requirement("no_such_simulator", "pip install 'rollout-engine[absent]'"),)


def test_a_missing_extra_is_shown_with_its_whole_command(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("absent", f"{__name__}:Absent", "rollout.envs")
    monkeypatch.setattr(listing, "families", lambda: {"absent": point})
    monkeypatch.setattr(listing, "load_simulator", lambda name: Absent)
    out = io.StringIO()
    listing.print_catalogue(Console(file=out, width=400, markup=False))
    assert "pip install 'rollout-engine[absent]'" in out.getvalue()
