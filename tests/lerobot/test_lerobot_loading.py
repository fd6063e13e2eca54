"""What is loaded is the checkpoint that was saved, or the run ends with one line that says what to do."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import FRONT, WRIST, save
from click.testing import CliRunner
from lerobot_loop import TARGET, Reference, opened

import rollout
from rollout.cli import cli
from rollout.errors import UsageError
from rollout.policies.load import as_policy
from rollout.results.journal import read_actions
from rollout.values import unpack_array

SINGLE = "gym:cameras_env:cameras/Single-v0"


@pytest.fixture
def act(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("act, the whole chunk")


@pytest.fixture
def copied(act: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may damage."""
    return Path(shutil.copytree(act, tmp_path / "copied"))


def refused(folder: Path | str, target: str = TARGET, **settings: Any) -> str:
    """The line that a run of the checkpoint ends with."""
    with pytest.raises(UsageError) as caught:
        rollout.run(f"lerobot:{folder}", target, episodes=1, workers=1, device="cpu", **settings)
    line = str(caught.value)
    assert "\n" not in line
    return line


def edit(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_what_the_checkpoint_says_of_itself_is_in_the_spec(checkpoint: Callable[[str], Path]) -> None:
    with opened(checkpoint("act, temporal ensembling")) as policy:
        spec = policy.spec
    assert (spec.chunk_size, spec.n_action_steps, spec.temporal_ensemble) == (8, 1, 0.01)
    assert spec.observation_keys == (FRONT, WRIST, "observation.state")
    with opened(checkpoint("vqbet")) as policy:
        spec = policy.spec
    assert (spec.n_obs_steps, spec.chunk_size, spec.n_action_steps) == (3, 4, 4)
    with opened(checkpoint("pi0, an empty camera")) as policy:
        assert "observation.images.empty_camera_0" not in policy.spec.observation_keys


def test_the_record_names_the_bytes_that_were_run(act: Path, copied: Path) -> None:
    def versions(folder: Path) -> dict[str, str]:
        config = rollout.EvalConfig.create(targets=(TARGET,), device="cpu")
        with as_policy(f"lerobot:{folder}", config) as policy:
            found: dict[str, str] = policy.versions
        return found

    assert versions(act) == versions(copied)
    assert set(versions(act)) == {"lerobot", "checkpoint"}
    edit(copied / "policy_postprocessor.json", name="other")
    assert versions(act)["checkpoint"] != versions(copied)["checkpoint"]


def test_loading_prints_nothing(act: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with opened(act):
        pass
    assert capfd.readouterr() == ("", "")


def test_loads_at_the_same_time_leave_what_other_threads_print_and_log(
    act: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before, handlers, lines = sys.stdout, logging.getLogger().handlers[:], 0
    caplog.set_level(logging.INFO)

    def load() -> None:
        with opened(act):
            pass

    with ThreadPoolExecutor(2) as threads:
        loads = [threads.submit(load) for _ in range(4)]
        while lines == 0 or wait(loads, timeout=0.005).not_done:
            print(f"line {lines}")
            logging.getLogger("other").info("line %d", lines)
            lines += 1
        for done in loads:
            done.result()
    expected = [f"line {line}" for line in range(lines)]
    assert capsys.readouterr().out.splitlines() == expected
    assert [record.getMessage() for record in caplog.records if record.name == "other"] == expected
    assert sys.stdout is before
    assert logging.getLogger().handlers == handlers


def test_settings_of_the_policy_are_taken_from_the_command_line(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("diffusion, DDPM")
    with opened(folder, policy_args={"num_inference_steps": 2}) as policy:
        assert policy._policy._policy.diffusion.num_inference_steps == 2
    assert "no setting 'num_inference_step'; did you mean 'num_inference_steps'" in refused(
        folder, policy_args={"num_inference_step": 2}
    )
    assert "does not fit LeRobot" in refused(folder, policy_args={"num_inference_steps": "many"})


def test_half_precision_is_autocast(act: Path) -> None:
    reports = [
        rollout.run(f"lerobot:{act}", TARGET, episodes=1, workers=1, device="cpu", dtype=dtype)
        for dtype in ("fp32", "bf16")
    ]
    assert reports[0].episodes[0].digest != reports[1].episodes[0].digest
    assert reports[1].summary.overall.n_error == 0


def test_the_checkpoints_own_names_are_matched_by_its_rename_map(act: Path, tmp_path: Path) -> None:
    names = {"observation.images.camera1": FRONT, "observation.images.camera2": WRIST}
    inner = {given: name for name, given in names.items()}
    folder = save(tmp_path / "policy", "act", images=tuple(names), renamed=inner)
    with opened(folder) as policy:
        assert policy.spec.observation_keys == (FRONT, WRIST, "observation.state")
    assert digests(folder) == digests(act)


def test_a_name_that_the_simulator_lacks_is_given_with_rename(act: Path, tmp_path: Path) -> None:
    other = ("observation.images.left", "observation.images.right")
    folder = save(tmp_path / "policy", "act", images=other)
    assert "'observation.images.left'" in refused(folder)
    rename = {FRONT: other[0], WRIST: other[1]}
    assert digests(folder, policy_args={"rename": rename}) == digests(act)
    words = ["run", TARGET, "--policy", f"lerobot:{folder}", "--policy-arg", f"rename={json.dumps(rename)}"]
    done = CliRunner().invoke(cli, [*words, "--episodes", "1", "--workers", "1", "--device", "cpu"])
    assert done.exit_code == 0, done.output


def digests(folder: Path | str, **settings: Any) -> list[str | None]:
    report = rollout.run(f"lerobot:{folder}", TARGET, episodes=1, workers=1, device="cpu", **settings)
    return [episode.digest for episode in report.episodes]


def test_lerobots_name_for_a_lone_picture_is_ours_for_it(tmp_path: Path) -> None:
    folder = save(tmp_path / "policy", "act", images=("observation.image",))
    report = rollout.run(
        f"lerobot:{folder}", SINGLE, episodes=1, workers=1, device="cpu", out=tmp_path / "run"
    )
    [episode] = report.episodes
    [record] = read_actions(tmp_path / "run").values()
    assert episode.steps == len(unpack_array(record.actions))


@pytest.mark.pusht
def test_a_checkpoint_of_lerobots_pusht_runs_in_ours(tmp_path: Path) -> None:
    folder = save(tmp_path / "policy", "diffusion", images=("observation.image",), size=96, state=2)
    report = rollout.run(
        f"lerobot:{folder}", "pusht:PushT-v0", episodes=1, horizon=6, workers=1, device="cpu"
    )
    assert report.summary.overall.n_error == 0


@pytest.mark.parametrize(
    ("rename", "absent", "problem"),
    [
        ({"observation.images.x": "observation.images.frnt"}, [], "has no input 'observation.images.frnt'"),
        ({}, [WRIST], "act policy needs all its inputs"),
        ("front", [], "give a JSON object"),
        ({}, "front", "give a JSON list"),
    ],
)
def test_a_wrong_name_is_told(act: Path, rename: Any, absent: Any, problem: str) -> None:
    assert problem in refused(act, policy_args={"rename": rename, "absent": absent})


def test_what_the_policy_can_do_without_is_left_out(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("pi0")
    report = rollout.run(
        f"lerobot:{folder}",
        TARGET,
        episodes=1,
        workers=1,
        device="cpu",
        policy_args={"absent": [WRIST]},
    )
    assert report.summary.overall.n_error == 0
    assert "has no input 'observation.images.back'" in refused(
        folder, policy_args={"absent": ["observation.images.back"]}
    )


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({"state": "5"}, ("(5,)", "(3,)")),
        ({"action": "4"}, ("(4,)", "(2,)")),
        ({"size": "48"}, ("(48, 48, 3)", "(32, 32, 3)")),
    ],
)
def test_other_shapes_than_the_checkpoints_are_told_before_a_step(
    act: Path, options: dict[str, str], shapes: tuple[str, str]
) -> None:
    line = refused(act, options=options)
    assert all(shape in line for shape in shapes), line


def test_pictures_of_another_size_are_given_where_that_is_asked_for(act: Path) -> None:
    found = digests(act, options={"size": "48"}, policy_args={"any_size": True})
    assert found != digests(act)


def test_a_postprocessor_with_a_step_of_its_own_gets_one_action_at_a_time(act: Path, copied: Path) -> None:
    from lerobot.processor import IdentityProcessorStep, PolicyProcessorPipeline

    name = "policy_postprocessor.json"
    post = PolicyProcessorPipeline.from_pretrained(str(copied), config_filename=name)
    post.steps = [*post.steps, IdentityProcessorStep()]
    post.save_pretrained(copied, config_filename=name)
    with opened(copied) as policy:
        assert not policy._policy._whole
    assert digests(copied) == digests(act)


@pytest.mark.parametrize("name", ["smolvla", "pi05"])
def test_policies_that_resize_take_any_size(name: str, checkpoint: Callable[[str], Path]) -> None:
    assert digests(checkpoint(name), options={"size": "48"})


def test_a_place_without_a_checkpoint_is_told(act: Path, tmp_path: Path) -> None:
    assert "there is no folder" in refused(tmp_path / "nowhere")
    assert "there is no folder" in refused("just_a_name")
    assert "hub cannot be reached" in refused("someone/something")
    assert "has no config.json and no model.safetensors" in refused(tmp_path)
    assert "is a file" in refused(act / "config.json")
    assert "which has none" in refused(act, policy_args={"revision": "v2"})


def test_a_repository_that_was_downloaded_before_is_run_without_the_hub(
    act: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    commit, cached = "0" * 40, tmp_path / "models--me--mine"
    shutil.copytree(act, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert digests("me/mine") == digests(act)
    assert digests("me/mine", policy_args={"revision": commit}) == digests(act)


def test_the_folder_of_a_training_run_points_to_its_last_checkpoint(act: Path, tmp_path: Path) -> None:
    last = tmp_path / "run" / "checkpoints" / "last" / "pretrained_model"
    shutil.copytree(act, last)
    assert f"give {last}" in refused(tmp_path / "run")


def test_a_checkpoint_of_another_kind_or_version_is_told(copied: Path) -> None:
    config = copied / "config.json"
    edit(config, a_setting_of_tomorrow=1)
    assert "does not fit LeRobot" in refused(copied)
    edit(config, type="axt")
    assert "has no policy type 'axt'; did you mean 'act'" in refused(copied)
    edit(config, type="tdmpc")
    assert "a tdmpc policy cannot be run" in refused(copied)
    config.write_text("{")
    assert "cannot be read" in refused(copied)


def test_a_checkpoint_without_processors_is_told_what_it_lacks(copied: Path) -> None:
    for file in copied.glob("policy_*"):
        file.unlink()
    line = refused(copied)
    assert f"{copied} has no policy_preprocessor.json" in line
    assert "migrate" not in line


@pytest.mark.parametrize(
    "name", ["normalize_inputs.buffer_observation_state.mean", "unnormalize_outputs.x.std"]
)
def test_a_checkpoint_from_before_processors_is_told_how_to_be_migrated(copied: Path, name: str) -> None:
    import importlib.util

    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(copied / "model.safetensors")
    save_file({**weights, name: torch.zeros(3)}, copied / "model.safetensors")
    for file in copied.glob("policy_*"):
        file.unlink()
    line = refused(copied)
    module = line.partition("python -m ")[2].split()[0]
    assert module == "lerobot.processor.migrate_policy_normalization"
    assert importlib.util.find_spec(module) is not None
    assert line.endswith(f"--pretrained-path {copied}")


def test_weights_that_are_missing_or_of_other_shapes_are_never_random_ones(
    copied: Path, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    for folder, name in (
        (copied, "model.action_head.bias"),
        (Path(shutil.copytree(checkpoint("pi0"), tmp_path / "pi0")), "model.action_out_proj.bias"),
    ):
        whole = load_file(folder / "model.safetensors")
        part = {key: value for key, value in whole.items() if key != name}
        save_file(part, folder / "model.safetensors")
        assert name in refused(folder)
        save_file({**whole, name: whole[name][:1].clone()}, folder / "model.safetensors")
        assert "size mismatch" in refused(folder)
        (folder / "model.safetensors").write_bytes(b"torn")
        assert "cannot be loaded" in refused(folder)


def test_a_missing_extra_is_named(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from lerobot.utils import import_utils

    folder = checkpoint("diffusion, DDPM")
    monkeypatch.setitem(import_utils._require_package_cache, "diffusers", False)
    assert refused(folder).endswith("run: pip install 'lerobot[diffusion]'")


def test_adapters_and_compiling_are_refused_where_they_are_not_supported(act: Path, copied: Path) -> None:
    assert "--compile: LeRobot compiles no act policy" in refused(act, compile=True)
    edit(copied / "config.json", use_peft=True)
    assert "merge it into its base policy" in refused(copied)


def test_the_loop_that_we_compare_with_runs_the_same_files(act: Path) -> None:
    with opened(act) as policy:
        ours = policy._policy._policy.state_dict()
    theirs = Reference(act)._policy.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key].numpy(), theirs[key].numpy()) for key in ours)
