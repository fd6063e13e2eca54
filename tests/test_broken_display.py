"""A display of the user's own that raises: the results are written, and the run can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rollout

COUNT = "gym:toys:toy/Count-v0"


class Broken:
    """Raises in the method of that name."""

    interval_s = 0.1

    def __init__(self, method: str) -> None:
        setattr(self, method, self._break)

    def _break(self, *_: Any) -> None:
        raise RuntimeError("the display broke")

    def start(self, plan: Any, counters: Any) -> None: ...

    def refresh(self) -> None: ...

    def episode(self, result: Any) -> None: ...

    def note(self, message: str) -> None: ...

    def finish(self) -> None: ...


@pytest.mark.parametrize(("method", "complete"), [("start", False), ("finish", True)])
def test_a_display_that_raises_costs_no_results_and_leaves_the_directory_to_the_next_run(
    method: str, complete: bool, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"episodes": 2, "workers": 0, "out": str(tmp_path / "run")}
    with pytest.raises(RuntimeError, match="the display broke"):
        rollout.run("zero", COUNT, display=Broken(method), **settings)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["complete"] is complete
    report = rollout.run("zero", COUNT, resume=True, **settings)
    assert report.summary.complete
