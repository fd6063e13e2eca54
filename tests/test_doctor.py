"""`rollout doctor`: what it finds on this machine, and what it says of machines that lack something."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from rollout.doctor import Finding, diagnose, print_findings
from rollout.doctor.devices import (
    Cuda,
    Frame,
    check_backend,
    check_cuda,
    check_devices,
    check_libraries,
    check_rendering,
    check_unused_gpu,
    judge_cuda,
    torch_cuda,
    try_frame,
)
from rollout.doctor.machine import (
    check_cores,
    check_descriptors,
    check_memory,
    check_shared_memory,
    check_terminal,
    check_threads,
)
from rollout.doctor.memory import Measurement, check_workers, measure_workers
from rollout.doctor.packages import (
    check_core,
    check_known_bad,
    check_libero_config,
    check_libero_files,
    check_simulators,
    check_video,
    installed_versions,
)
from rollout.doctor.policies import check_policies
from rollout.envs.registry import load_simulator
from rollout.graphics import EglDevice, Graphics
from rollout.rendering import Backend, Obstacle, choose_backend

SOFTWARE = Graphics(devices=(EglDevice(kind="software"),))
ABSENT = "x.so: cannot open shared object file: No such file or directory"
LIBERO = {"hf-libero": "0.1.4", "robosuite": "1.4.0", "mujoco": "3.3.0"}


def only(findings: list[Finding]) -> tuple[str, str, str | None]:
    """The level, detail and fix of the single finding."""
    (finding,) = findings
    return finding.level, finding.detail, finding.fix


def printed(findings: list[Finding], width: int = 80) -> list[str]:
    stream = io.StringIO()
    print_findings(findings, Console(file=stream, width=width))
    return stream.getvalue().splitlines()


def test_a_diagnosis_names_a_fix_for_all_that_is_wrong_and_asks_nothing() -> None:
    code = (
        "import sys; from rollout.doctor import diagnose; findings = diagnose(); "
        "maps = open('/proc/self/maps').read(); "
        "print([finding for finding in findings if finding.level != 'ok' and not finding.fix], "
        "[name for name in ('torch', 'mujoco', 'libero', 'metaworld', 'av') if name in sys.modules], "
        "[name for name in ('libEGL', 'libOSMesa', 'libcuda') if name in maps]); print(len(findings))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, count = done.stdout.splitlines()
    assert first == "[] [] []"
    assert int(count) >= 12


def cpu_s() -> float:
    """Of this process and the children that have ended; unlike time, the same on a busy machine."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def test_a_diagnosis_takes_seconds() -> None:
    began = cpu_s()
    subjects = [finding.subject for finding in diagnose()]
    assert cpu_s() - began < 5  # about 1 s
    assert {"python", "torch", "metaworld", "cores", "memory", "/dev/shm", "open files"} <= set(subjects)


def test_details_wrap_under_themselves_and_fixes_are_never_broken() -> None:
    fix = "pip install " + "a-long-package-name " * 6 + "end"
    lines = printed(
        [
            Finding(level="ok", subject="python", detail="3.11"),
            Finding(level="error", subject="assets", detail="some words " * 12 + "[not markup]", fix=fix),
        ]
    )
    assert lines[0] == "ok       python         3.11"
    assert lines[1].startswith("error    assets         some words")
    assert all(line.startswith(" " * 24 + "s") or line.startswith(" " * 24 + "w") for line in lines[2:4])
    assert max(map(len, lines[:4])) <= 80
    assert "[not markup]" in " ".join(lines)
    assert f"         fix: {fix}" in lines
    assert lines[-1] == "1 error, no warnings"


def test_a_narrow_terminal_still_gets_every_word() -> None:
    finding = Finding(level="warning", subject="memory", detail="one two three four five six")
    lines = printed([finding], width=30)
    assert " ".join(" ".join(lines[:-2]).split()) == "warning memory one two three four five six"
    assert lines[-1] == "no errors, 1 warning"


def test_missing_simulators_are_warnings_with_the_extra_to_install() -> None:
    findings = check_simulators({"mujoco": "3.3.0"})
    assert [(finding.level, finding.subject, finding.fix) for finding in findings] == [
        ("warning", name, f"pip install 'rollout-engine[{name}]'")
        for name in ("metaworld", "libero", "pusht", "aloha")
    ]


def test_libero_without_robosuite_is_an_error() -> None:
    finding = check_simulators({"libero": "0.1.0", "mujoco": "3.3.0"})[1]
    assert (finding.level, finding.detail) == ("error", "libero 0.1.0 lacks robosuite")


def test_missing_torch_and_package_are_errors() -> None:
    findings = check_core({"gymnasium": "1.0"})
    errors = {finding.subject: finding.fix for finding in findings if finding.level == "error"}
    assert errors == {"rollout": "pip install -e .", "torch": "pip install 'torch>=2.4'"}


@pytest.mark.parametrize(
    ("versions", "fixes"),
    [
        (LIBERO, []),
        (LIBERO | {"metaworld": "3.1.1"}, []),
        (LIBERO | {"mujoco": "3.4.0"}, ["pip install mujoco==3.3.0"]),
        (LIBERO | {"mujoco": "3.10.1rc1"}, ["pip install mujoco==3.3.0"]),
        ({"metaworld": "3.1.1", "mujoco": "4.0"}, ["pip install mujoco==3.3.0"]),
        ({"mujoco": "3.8.1"}, []),
        (LIBERO | {"robosuite": "1.5.1"}, ["pip install robosuite==1.4.0"]),
        ({"robosuite": "1.5.1"}, []),
        ({"metaworld": "2.0.0", "mujoco": "3.3.0"}, ["pip install metaworld==3.1.1"]),
    ],
)
def test_versions_that_change_scores_are_warned_of(versions: Mapping[str, str], fixes: list[str]) -> None:
    findings = check_known_bad(versions)
    assert [finding.fix for finding in findings] == fixes
    assert all(finding.level == "warning" for finding in findings)


@pytest.mark.parametrize(
    ("count", "level", "fix"),
    [
        (0, "error", "pip install 'rollout-engine[libero]'"),
        (554, "error", "pip install --force-reinstall"),
        (555, "ok", ""),
    ],
)
def test_liberos_assets_are_counted(tmp_path: Path, count: int, level: str, fix: str) -> None:
    (tmp_path / "textures").mkdir()
    for number in range(count):
        (tmp_path / "textures" / f"{number}.png").touch()
    found = only(check_libero_files({"HOME": str(tmp_path)}, LIBERO, [tmp_path]))
    assert found[0] == level
    assert (found[2] or "").startswith(fix)


def test_liberos_files_are_of_no_interest_without_libero(tmp_path: Path) -> None:
    assert check_libero_files({"LIBERO_CONFIG_PATH": "/nowhere"}, {}, [tmp_path]) == []


def write_config(directory: Path, **paths: Path) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "config.yaml").write_text("".join(f"{key}: {path}\n" for key, path in paths.items()))


def test_a_stale_config_in_the_home_directory_is_a_warning(tmp_path: Path) -> None:
    write_config(tmp_path / ".libero", bddl_files=tmp_path / "gone", datasets=tmp_path / "never-there")
    level, detail, fix = only(check_libero_config({"HOME": str(tmp_path)}))
    assert (level, fix) == ("warning", f"rm {tmp_path}/.libero/config.yaml")
    assert detail.endswith(f"bddl_files is no folder: {tmp_path}/gone")


def test_a_stale_config_that_the_user_chose_is_an_error(tmp_path: Path) -> None:
    write_config(tmp_path, init_states=tmp_path / "gone")
    level, _, fix = only(check_libero_config({"LIBERO_CONFIG_PATH": str(tmp_path)}))
    assert (level, fix) == ("error", "unset LIBERO_CONFIG_PATH")


def test_a_chosen_config_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    level, _, fix = only(check_libero_config({"LIBERO_CONFIG_PATH": str(tmp_path / "gone")}))
    assert (level, fix) == ("error", "unset LIBERO_CONFIG_PATH")


def test_a_good_config_or_none_is_fine(tmp_path: Path) -> None:
    assert check_libero_config({"HOME": str(tmp_path)}) == []
    write_config(tmp_path, bddl_files=tmp_path, init_states=tmp_path, datasets=tmp_path / "never-there")
    assert only(check_libero_config({"LIBERO_CONFIG_PATH": str(tmp_path)}))[0] == "ok"


@pytest.mark.parametrize(
    ("versions", "details"),
    [
        (
            {},
            [
                "not installed: no lerobot:… (it needs Python 3.12, see docs/lerobot.md)",
                "no openpi:… and rollout serve, no gr00t:…, pip install 'rollout-engine[remote]'",
            ],
        ),
        (
            {"lerobot": "0.6.1", "websockets": "17.4", "pyzmq": "27.3.0"},
            ["0.6.1", "websockets 17.4, pyzmq 27.3.0"],
        ),
    ],
)
def test_policies_that_cannot_be_had_are_told_and_are_no_fault(
    versions: dict[str, str], details: list[str]
) -> None:
    findings = check_policies(versions)
    assert [finding.detail for finding in findings] == details
    assert {finding.level for finding in findings} == {"ok"}


def test_video_without_av_names_the_extra() -> None:
    assert only(check_video({}))[2] == "pip install 'rollout-engine[video]'"


@pytest.mark.skipif("av" not in installed_versions(), reason="needs the `video` extra")
def test_the_installed_encoder_is_tried() -> None:
    assert only(check_video(installed_versions()))[:2] == ("ok", f"av {installed_versions()['av']}, libx264")


def test_missing_libraries_that_are_not_needed_are_told_with_their_package() -> None:
    graphics = Graphics(failures={"libOSMesa": ABSENT}, devices=SOFTWARE.devices)
    found = only(check_libraries(graphics, choose_backend("auto", {}, graphics)))
    assert found == ("ok", "libEGL, libGL, no libOSMesa (libosmesa6)", None)


def test_a_broken_library_is_a_warning_even_where_another_one_will_do() -> None:
    graphics = Graphics(failures={"libEGL": "libEGL.so.1: file too short"})
    level, detail, fix = only(check_libraries(graphics, choose_backend("auto", {}, graphics)))
    assert (level, detail) == ("warning", "libGL, libOSMesa, libEGL.so.1: file too short")
    assert fix is not None
    assert fix.endswith("apt-get install -y --reinstall libegl1")


def test_without_any_library_one_finding_says_it_all() -> None:
    graphics = Graphics(failures=dict.fromkeys(["libEGL", "libGL", "libOSMesa"], ABSENT))
    backend = choose_backend("auto", {}, graphics)
    assert check_libraries(graphics, backend) == []
    level, detail, fix = only(check_backend(backend, {}, graphics, None))
    assert (level, detail) == ("warning", "no cameras and no videos: no libEGL, no libGL, no libOSMesa")
    assert fix is not None
    assert fix.endswith("apt-get install -y libegl1 libgl1 libosmesa6")
    assert check_devices(graphics, {}) == []


def test_a_setting_that_cannot_render_is_an_error() -> None:
    environ = {"MUJOCO_GL": "off"}
    backend = choose_backend("auto", environ, SOFTWARE)
    assert only(check_backend(backend, environ, SOFTWARE, None))[::2] == ("error", "unset MUJOCO_GL")
    assert only(check_libraries(SOFTWARE, backend))[0] == "ok"


def test_a_back_end_that_draws_no_frame_is_an_error() -> None:
    frame = Frame(False, "RuntimeError: no context")
    egl = Backend(name="egl", reason="egl: 1 GPU")
    assert only(check_backend(egl, {}, SOFTWARE, frame)) == (
        "error",
        "egl: RuntimeError: no context",
        "export MUJOCO_GL=osmesa",
    )
    osmesa = Backend(name="osmesa", reason="osmesa: software rendering")
    fix = only(check_backend(osmesa, {}, SOFTWARE, frame))[2]
    assert fix is not None
    assert "libosmesa6 libgl1-mesa-dri" in fix


def test_a_gpu_that_is_not_rendered_on_is_told() -> None:
    graphics = Graphics(
        failures={"libEGL_nvidia": ABSENT}, devices=SOFTWARE.devices, nvidia=("GPU-a",), container=True
    )
    backend = choose_backend("auto", {}, graphics)
    level, _, fix = only(check_unused_gpu(backend, {}, graphics))
    assert (backend.name, level) == ("osmesa", "warning")
    assert fix is not None
    assert "NVIDIA_DRIVER_CAPABILITIES=all" in fix
    assert check_unused_gpu(backend, {"MUJOCO_GL": "osmesa"}, graphics) == []


@pytest.mark.parametrize("device", ["1", "-1", "x"])
def test_an_egl_device_that_does_not_exist_is_an_error(device: str) -> None:
    level, _, fix = only(check_devices(SOFTWARE, {"MUJOCO_EGL_DEVICE_ID": device}))
    assert (level, fix) == ("error", "unset MUJOCO_EGL_DEVICE_ID")


@pytest.mark.gl
@pytest.mark.skipif("mujoco" not in installed_versions(), reason="needs a MuJoCo simulator")
@pytest.mark.parametrize("name", ["osmesa", "egl"])
def test_each_software_back_end_draws_a_real_frame(name: str) -> None:
    environ = {**os.environ, "MUJOCO_GL": name, "PYOPENGL_PLATFORM": ""}
    frame = try_frame(choose_backend("cpu", environ), environ)
    assert frame.drawn, frame.text
    assert "llvmpipe" in frame.text or "softpipe" in frame.text


@pytest.mark.skipif("mujoco" not in installed_versions(), reason="needs a MuJoCo simulator")
def test_a_frame_that_cannot_be_drawn_is_told_without_a_traceback(tmp_path: Path) -> None:
    for name in ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so"):
        (tmp_path / name).touch()
    environ = {**os.environ, "MUJOCO_GL": "osmesa", "LD_LIBRARY_PATH": str(tmp_path)}
    frame = try_frame(Backend(name="osmesa", reason=""), environ)
    assert not frame.drawn
    assert "\n" not in frame.text
    assert "Error" in frame.text


def test_the_environment_is_judged_as_a_whole() -> None:
    findings = check_rendering({**os.environ, "MUJOCO_GL": "elg"}, {})
    judged = [finding for finding in findings if finding.subject == "rendering"]
    assert [(finding.level, finding.fix) for finding in judged] == [("error", "unset MUJOCO_GL")]


@pytest.mark.parametrize(
    ("cuda", "built_for", "environ", "level", "words"),
    [
        (
            Cuda(version=12080, gpus=("H200", "H200")),
            "12.8",
            {},
            "ok",
            "2 × H200; the driver knows CUDA 12.8",
        ),
        (Cuda(version=12040, gpus=("H200",)), "12.8", {}, "ok", "torch is built for 12.8"),
        (
            Cuda(version=11080, gpus=("A100",)),
            "12.8",
            {},
            "error",
            "knows CUDA 11.8, torch is built for 12.8",
        ),
        (Cuda(version=12080, gpus=("H200",)), None, {}, "warning", "built for the CPU alone"),
        (Cuda(version=12080, error=100), "12.8", {"CUDA_VISIBLE_DEVICES": ""}, "warning", "hides every GPU"),
        (Cuda(version=12080, error=804), "12.8", {}, "error", "cuInit returned 804"),
    ],
)
def test_cuda_is_judged_beside_torch(
    cuda: Cuda,
    built_for: str | None,
    environ: Mapping[str, str],
    level: str,
    words: str,
) -> None:
    found, detail, fix = only(judge_cuda(cuda, built_for, environ))
    assert (found, fix is None) == (level, level == "ok")
    assert words in detail


def test_a_cuda_driver_that_does_not_load_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()
    there = tmp_path / "version"
    there.touch()
    level, detail, fix = only(check_cuda({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, there))
    assert (level, fix) == ("error", "nvidia-smi")
    assert "file too short" in detail


def test_torchs_cuda_version_is_read_without_importing_it() -> None:
    code = (
        "import sys; from rollout.doctor.devices import torch_cuda; print(torch_cuda()); "
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{torch_cuda()}\nFalse\n"
    torch = installed_versions().get("torch", "")
    assert ("+cpu" in torch) <= (torch_cuda() is None)


def test_memory_says_how_many_workers_fit() -> None:
    sizes = {"libero": 1.5, "metaworld": 0.4}
    assert only(check_memory(15 * 10**9, sizes)) == (
        "ok",
        "15.0 GB available, enough for 8 libero or 30 metaworld workers",
        None,
    )
    level, _, fix = only(check_memory(10**9, sizes))
    assert level == "warning"
    assert fix is not None


def test_a_worker_is_the_shipped_figure_until_it_is_measured() -> None:
    sizes = {"libero": 2.0, "mine": 0.5}
    found = check_workers(4, 10 * 10**9, sizes, {})
    assert [finding.level for finding in found] == ["ok", "ok"]
    assert [finding.detail for finding in found] == [
        "libero: up to 2.0 GB each, as shipped; rollout doctor --measure measures it here; --workers auto is 4",
        "mine: up to 0.5 GB each, as shipped; --workers auto is 8",
    ]


def test_a_measured_worker_is_told_with_its_scene() -> None:
    measured = {"libero": Measurement(scene="libero:10 task 4", worker_gb=1.64)}
    assert only(check_workers(4, 10 * 10**9, {"libero": 2.0}, measured)) == (
        "ok",
        "libero: 1.6 GB each, measured with libero:10 task 4; --workers auto is 4",
        None,
    )


def test_a_worker_that_holds_more_than_is_reckoned_with_is_a_warning_that_gives_a_number() -> None:
    measured = {"libero": Measurement(scene="libero:10 task 4", worker_gb=4.0)}
    level, detail, fix = only(check_workers(4, 10 * 10**9, {"libero": 2.0}, measured))
    assert (level, fix) == ("warning", "rollout run … --workers 2")
    assert "4.0 GB each" in detail
    assert detail.endswith("--workers auto reckons with 2.0 GB and is 4")


def test_without_rendering_nothing_is_measured_and_the_fix_is_the_libraries() -> None:
    backend = Backend(name="none", reason="none: no libEGL", obstacle=Obstacle("no libEGL", "apt-get x"))
    measured = measure_workers(backend, {"libero": 2.0})
    level, detail, fix = only(check_workers(4, 10**10, {"libero": 2.0}, measured))
    assert (level, fix) == ("error", "apt-get x")
    assert "no libEGL" in detail


@pytest.mark.gl
@pytest.mark.parametrize(
    ("family", "least", "most"),
    [
        pytest.param("libero", 0.8, 2.2, marks=pytest.mark.libero),
        pytest.param("metaworld", 0.05, 0.4, marks=pytest.mark.metaworld),
    ],
)
def test_a_scene_is_built_in_a_worker_and_measured(family: str, least: float, most: float) -> None:
    shipped = load_simulator(family).worker_memory_gb
    found = measure_workers(choose_backend("cpu"), {family: shipped, "gym": 0.2})
    assert list(found) == [family]
    assert found[family].problem == ""
    assert found[family].worker_gb is not None
    assert least < found[family].worker_gb < most
    assert found[family].worker_gb < shipped  # what `--workers auto` reckons with is on the safe side


@pytest.mark.libero
@pytest.mark.gl
def test_a_scene_that_cannot_be_built_is_an_error_with_a_command_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))  # holds no config
    measured = measure_workers(choose_backend("cpu"), {"libero": 2.0})
    level, detail, fix = only(check_workers(4, 10**10, {"libero": 2.0}, measured))
    assert level == "error"
    assert "LIBERO_CONFIG_PATH" in detail
    assert fix == "rollout run libero:10 --tasks 4 --episodes 1 --policy zero --workers 0"


def test_cores_tell_of_a_limit() -> None:
    assert only(check_cores(4, 4)) == ("ok", "4", None)
    assert only(check_cores(4, 64)) == ("ok", "4 of 64, by affinity or CPU quota", None)


def test_shared_memory_that_is_missing_or_small_is_a_warning(tmp_path: Path) -> None:
    assert only(check_shared_memory(tmp_path))[0] == "ok"
    level, _, fix = only(check_shared_memory(tmp_path / "shm"))
    assert level == "warning"
    assert fix is not None
    assert "--shm-size" in fix


@pytest.mark.parametrize(
    ("soft", "hard", "level", "fix"),
    [
        (1024, 4096, "ok", None),
        (-1, -1, "ok", None),
        (128, 4096, "warning", "ulimit -n 4096"),
        (128, -1, "warning", "ulimit -n 65536"),
        (128, 128, "warning", "docker run --ulimit nofile=65536 …"),
    ],
)
def test_few_descriptors_are_a_warning(soft: int, hard: int, level: str, fix: str | None) -> None:
    assert only(check_descriptors(soft, hard, cores=16))[::2] == (level, fix)


def test_threads_that_the_user_multiplied_are_a_warning() -> None:
    assert only(check_threads({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": ""}, 2))[0] == "ok"
    level, detail, fix = only(check_threads({"OMP_NUM_THREADS": "8", "LP_NUM_THREADS": "2"}, 2))
    assert (level, fix) == ("warning", "unset OMP_NUM_THREADS LP_NUM_THREADS")
    assert "OMP_NUM_THREADS=8, LP_NUM_THREADS=2" in detail


def test_a_pipe_is_no_terminal() -> None:
    assert only(check_terminal(io.StringIO())) == ("ok", "none: a run prints plain lines", None)


@pytest.mark.parametrize(("term", "level"), [("xterm-256color", "ok"), ("dumb", "warning")])
def test_a_terminal_is_told_with_its_width(
    term: str,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", term)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "w", encoding="utf-8") as stream:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 97, 0, 0))
        found = only(check_terminal(stream))
    assert found[0] == level
    if level == "ok":
        assert found[1] == "97 columns, live view"
