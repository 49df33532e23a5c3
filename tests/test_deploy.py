"""The files in deploy/: valid, and consistent with the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="needs the extra ray, which installs PyYAML")

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"

# Fields of ray.io/v1 (the KubeRay API reference) that the manifest may use, with required ones.
SPEC_FIELDS = {
    "rayVersion": str,
    "authOptions": dict,
    "enableInTreeAutoscaling": bool,
    "headGroupSpec": dict,
    "workerGroupSpecs": list,
}
HEAD_FIELDS = {"rayStartParams": dict, "template": dict, "serviceType": str}
WORKER_FIELDS = {
    "groupName": str,
    "replicas": int,
    "minReplicas": int,
    "maxReplicas": int,
    "rayStartParams": dict,
    "template": dict,
}
POD_FIELDS = {"containers": list, "securityContext": dict, "volumes": list}
CONTAINER_FIELDS = {
    "name": str,
    "image": str,
    "ports": list,
    "resources": dict,
    "volumeMounts": list,
    "env": list,
}


def check_fields(data: dict[str, Any], allowed: dict[str, type], required: set[str]) -> None:
    assert required <= data.keys() <= allowed.keys()
    for name, value in data.items():
        assert type(value) is allowed[name], name


def check_group(group: dict[str, Any]) -> None:
    """Parameters of `ray start` are texts; resources are Kubernetes quantities."""
    assert all(type(value) is str for value in group["rayStartParams"].values())
    assert group["template"].keys() == {"spec"}
    pod = group["template"]["spec"]
    check_fields(pod, POD_FIELDS, {"containers"})
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for container in pod["containers"]:
        check_fields(container, CONTAINER_FIELDS, {"name", "image", "resources"})
        for quantities in container["resources"].values():
            for value in quantities.values():
                assert re.fullmatch(r"\d+(Mi|Gi)?", value), value
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes


def test_manifest_follows_kuberay_schema() -> None:
    manifest = yaml.safe_load((DEPLOY / "raycluster.yaml").read_text())
    assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", manifest["metadata"]["name"])
    spec = manifest["spec"]
    check_fields(spec, SPEC_FIELDS, {"rayVersion", "headGroupSpec", "workerGroupSpecs"})
    assert spec["authOptions"] == {"mode": "token"}
    check_fields(spec["headGroupSpec"], HEAD_FIELDS, {"rayStartParams", "template"})
    check_group(spec["headGroupSpec"])
    for group in spec["workerGroupSpecs"]:
        check_fields(group, WORKER_FIELDS, {"groupName", "rayStartParams", "template"})
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        check_group(group)


def test_container_file_copies_existing_files_and_installs_existing_extras() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {word for word, _ in instructions} <= {
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "USER",
        "ENV",
        "CMD",
    }
    assert instructions[0][0] == "FROM"
    sources = {s for word, rest in instructions if word == "COPY" for s in rest.split()[:-1]}
    assert all((ROOT / source).exists() for source in sources)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', " ".join(lines))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_image_and_manifest_agree() -> None:
    """The same version of Ray, with the servers of health checks, and a volume for its user."""
    image = (DEPLOY / "Dockerfile").read_text()
    spec = yaml.safe_load((DEPLOY / "raycluster.yaml").read_text())["spec"]
    assert f'"ray[default]=={spec["rayVersion"]}"' in image
    (user,) = re.findall(r"useradd .*--uid (\d+)", image)
    assert spec["headGroupSpec"]["template"]["spec"]["securityContext"] == {"fsGroup": int(user)}


def test_image_files_suffice_to_build_the_package(tmp_path: Path) -> None:
    """The wheel that the image installs has every file of the package."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    sources = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    tree = tmp_path / "tree"
    for name in sources:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            tree.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    build = "from setuptools import build_meta; build_meta.build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(tree)) for path in (tree / "lookfurther").rglob("*.py")}
    assert modules <= names


# srun kills its tasks if it gets SIGTERM, as the real one does.
STUBS = {
    "srun": '''echo "srun $*" >> "$LOG"
while [ "${1#--}" != "$1" ]; do shift 2; done
"$@" & task=$!
trap 'kill -KILL "$task"' TERM
wait "$task"''',
    "ray": 'echo "ray $*" >> "$LOG"',
    "python": "printf secret",
}
LEARNER = """echo "$(cat "$RAY_AUTH_TOKEN_PATH")" >> "$LOG"
trap 'echo saved >> "$LOG"; exit 7' TERM
kill -USR1 "$BATCH_PID"
while true; do sleep 0.1; done"""


def make_learner(lines: int, code: int) -> str:
    """A learner that ends when the log has so many lines: other programs may start later."""
    wait = f'until [ "$(wc -l < "$LOG")" -ge {lines} ]; do sleep 0.1; done'
    return f'echo "lookfurther $*" >> "$LOG"; {wait}; exit {code}'


def run_batch_script(
    tmp_path: Path, learner: str, nodes: int, **stubs: str
) -> tuple[int, list[str]]:
    """Run the script with programs that log their arguments; returns its exit code and the log."""
    for name, script in (STUBS | {"lookfurther": learner} | stubs).items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    log.write_text("")
    variables = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "LOG": str(log),
        "SLURM_JOB_ID": "12",
        "SLURMD_NODENAME": "first",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_CPUS_PER_NODE": "8" if nodes == 1 else f"8(x{nodes - 1}),4",
        "SLURM_CPUS_ON_NODE": "8",
    }
    command = f"export BATCH_PID=$$; exec bash {DEPLOY / 'slurm.sh'} no-demos --env CartPole-v1"
    ended = subprocess.run(["bash", "-c", command], env=variables, cwd=tmp_path, timeout=300)
    assert not (tmp_path / ".ray-token-12").exists()
    return ended.returncode, log.read_text().splitlines()


def test_batch_script_starts_head_workers_and_learner(tmp_path: Path) -> None:
    """Three nodes with 20 cores: one for the learner, and an actor for each other one."""
    code, log = run_batch_script(tmp_path, make_learner(lines=5, code=3), nodes=3)
    worker = "ray start --address first:6379 --block"
    assert code == 3
    assert sorted(log) == sorted(
        [
            "ray start --head --port 6379 --num-cpus 7 --block",
            "ray health-check --address first:6379",
            f"srun --cpu-bind none --nodes 2 --ntasks 2 --exclude first {worker}",
            worker,
            "lookfurther train no-demos --cluster first:6379 --cluster-actors 19 --env CartPole-v1",
        ]
    )


def test_batch_script_on_one_node_starts_no_workers(tmp_path: Path) -> None:
    code, log = run_batch_script(tmp_path, make_learner(lines=3, code=0), nodes=1)
    assert code == 0
    assert sorted(log) == sorted(
        [
            "ray start --head --port 6379 --num-cpus 7 --block",
            "ray health-check --address first:6379",
            "lookfurther train no-demos --cluster first:6379 --cluster-actors 7 --env CartPole-v1",
        ]
    )


def test_batch_script_ends_if_ray_does_not_start(tmp_path: Path) -> None:
    code, log = run_batch_script(tmp_path, 'echo trained >> "$LOG"', nodes=1, ray="exit 2")
    assert code == 1
    assert "trained" not in log


def test_batch_script_stops_the_learner_before_the_time_is_over(tmp_path: Path) -> None:
    """The learner reads the token, gets SIGTERM, saves, and its exit code is the job's."""
    code, log = run_batch_script(tmp_path, LEARNER, nodes=1)
    assert code == 7
    assert [line for line in log if not line.startswith("ray ")] == ["secret", "saved"]
    assert "#SBATCH --signal B:USR1@120" in (DEPLOY / "slurm.sh").read_text().splitlines()
