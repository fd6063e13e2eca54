"""A checkpoint is data: Python that it brings along, or names, runs only where the user said `--trust-remote-code`."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from lerobot_loop import TARGET

import rollout
from rollout.config import EvalConfig
from rollout.errors import UsageError
from rollout.policies.load import as_policy

PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")


@pytest.fixture
def copied(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkpoint that a test may change."""
    return Path(shutil.copytree(checkpoint("act, the whole chunk"), tmp_path / "copied"))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that foreign code makes when it runs."""
    return tmp_path / "it ran"


def load(folder: Path, *, trusted: bool = False) -> None:
    config = EvalConfig.create(targets=(TARGET,), device="cpu", trust_remote_code=trusted)
    with as_policy(f"lerobot:{folder}", config):
        pass


def refused(folder: Path, *, trusted: bool = False) -> str:
    with pytest.raises(UsageError) as caught:
        load(folder, trusted=trusted)
    line = str(caught.value)
    assert "\n" not in line
    return line


def add_step(folder: Path, step: Any, processor: str = PROCESSORS[0]) -> None:
    file = folder / processor
    told = json.loads(file.read_text())
    told["steps"].append(step)
    file.write_text(json.dumps(told))


@pytest.fixture
def foreign_step(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of a step outside of LeRobot, which says when it is imported."""
    package = tmp_path / "packages"
    package.mkdir()
    (package / "foreign_steps.py").write_text(
        "from pathlib import Path\n"
        "from lerobot.processor import IdentityProcessorStep\n"
        f"Path({str(mark)!r}).touch()\n"
        "class Step(IdentityProcessorStep): ...\n"
    )
    monkeypatch.syspath_prepend(package)
    yield "foreign_steps.Step"
    sys.modules.pop("foreign_steps", None)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_step_of_somebody_elses_is_imported_only_where_that_is_trusted(
    copied: Path, mark: Path, foreign_step: str, processor: str
) -> None:
    add_step(copied, {"class": foreign_step, "config": {}}, processor)
    line = refused(copied)
    assert line.endswith(
        f"{copied / processor} would have 'foreign_steps.Step' imported and run, which is not LeRobot's: "
        "read it, then add --trust-remote-code"
    )
    assert not mark.exists()
    load(copied, trusted=True)
    assert mark.exists()


@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "subprocess.run",
        "builtins.eval",
        "lerobotics.Step",
        ".Step",
        "Step",
        "",
        3,
        ["lerobot.x.Y"],
    ],
)
def test_any_other_class_is_refused_before_anything_is_imported(copied: Path, path: Any) -> None:
    add_step(copied, {"class": path, "config": {"args": "true"}})
    assert "--trust-remote-code" in refused(copied)


@pytest.mark.parametrize(
    "path",
    [
        "lerobot.envs.utils._load_module_from_path",  # runs the file that it is given
        "lerobot.processor.pipeline.Path",
        "lerobot.processor.pipeline.ProcessorStep.__init__",
        "lerobot.no_such_module.Step",
        "lerobot.",
    ],
)
@pytest.mark.parametrize("trusted", [False, True])
def test_what_is_no_step_of_lerobots_is_none_for_anybody(copied: Path, path: str, trusted: bool) -> None:
    add_step(copied, {"class": path, "config": {"path": "/tmp/x.py"}})
    assert "as a step, which is none of LeRobot's" in refused(copied, trusted=trusted)


def test_a_step_of_lerobots_may_be_named_by_its_class(copied: Path) -> None:
    add_step(copied, {"class": "lerobot.processor.pipeline.IdentityProcessorStep", "config": {}})
    load(copied)


@pytest.mark.parametrize("steps", [[3], {"a": 1}, "abc", ["x"], None])
def test_processors_without_a_list_of_steps_are_one_line(copied: Path, steps: Any) -> None:
    (copied / PROCESSORS[0]).write_text(json.dumps({"name": "x", "steps": steps}))
    assert "holds no list of steps" in refused(copied)


def test_a_file_that_is_nested_without_end_is_one_line(copied: Path) -> None:
    (copied / PROCESSORS[1]).write_text('{"steps":' + "[" * 100_000)
    assert "cannot be read" in refused(copied)


@pytest.fixture
def tokenizer(tmp_path: Path, mark: Path) -> Path:
    """A repository's folder whose processor is Python of its own, as of LeRobot's action tokenizers."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "Own", "auto_map": {"AutoProcessor": "own.Own"}})
    )
    (folder / "own.py").write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
        "class Own:\n"
        "    @classmethod\n"
        "    def register_for_auto_class(cls): ...\n"
        "    @classmethod\n"
        "    def from_pretrained(cls, *_, **__): return cls()\n"
    )
    return folder


def test_a_tokenizers_python_runs_only_where_it_is_trusted(copied: Path, mark: Path, tokenizer: Path) -> None:
    """LeRobot's own step asks transformers to trust whatever repository the checkpoint names."""
    config = {"action_tokenizer_name": str(tokenizer), "trust_remote_code": True}
    add_step(copied, {"registry_name": "action_tokenizer_processor", "config": config})
    line = refused(copied)
    assert line.endswith(
        f"it would run Python that came with it (own.py of {tokenizer}): read it, then add --trust-remote-code"
    )
    assert not mark.exists()
    with pytest.raises(UsageError, match="processors cannot be loaded"):  # PaliGemma's tokenizer is not here
        load(copied, trusted=True)
    assert mark.exists()


def test_the_check_binds_the_thread_that_loads_and_nobody_else(tokenizer: Path, mark: Path) -> None:
    from transformers import AutoProcessor

    from rollout.policies.lerobot_trust import without_remote_code

    with pytest.raises(UsageError, match="--trust-remote-code"), without_remote_code(trusted=False):
        AutoProcessor.from_pretrained(str(tokenizer), trust_remote_code=True)

    def swallowed() -> None:  # as LeRobot may
        with suppress(Exception):
            AutoProcessor.from_pretrained(str(tokenizer), trust_remote_code=True)

    with pytest.raises(UsageError, match="--trust-remote-code"), without_remote_code(trusted=False):
        swallowed()
    assert not mark.exists()
    AutoProcessor.from_pretrained(str(tokenizer), trust_remote_code=True)
    assert mark.exists()


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._mark), "w")


def test_pickled_weights_and_python_beside_the_weights_are_left_alone(copied: Path, mark: Path) -> None:
    for name in ("pytorch_model.bin", "model.pt", "model.pkl", "training_state.pth"):
        (copied / name).write_bytes(pickle.dumps(Trap(mark)))
    for name in ("modeling_act.py", "__init__.py", "conftest.py", "processor.py"):
        (copied / name).write_text(f"open({str(mark)!r}, 'w')")
    told = json.loads((copied / "config.json").read_text())
    load(copied)
    (copied / "config.json").write_text(json.dumps(told | {"auto_map": {"AutoModel": "modeling_act.Act"}}))
    assert "does not fit" in refused(copied)  # LeRobot knows no such setting
    (copied / "config.json").write_text(json.dumps(told))
    (copied / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused(copied)
    assert not mark.exists()


def test_a_trusted_run_is_the_same_run(copied: Path) -> None:
    digests = [
        [
            result.digest
            for result in rollout.run(
                f"lerobot:{copied}", TARGET, episodes=2, workers=1, device="cpu", trust_remote_code=trusted
            ).episodes
        ]
        for trusted in (False, True)
    ]
    assert digests[0] == digests[1]
    assert None not in digests[0]
