"""The files in deploy/: valid, and consistent with the package."""

from __future__ import annotations

import re
import subprocess
import tomllib
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
    pod = group["template"]["spec"]
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
    for word, rest in instructions:
        if word == "COPY":
            assert all((ROOT / source).exists() for source in rest.split()[:-1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', " ".join(lines))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_batch_script_is_valid_shell() -> None:
    subprocess.run(["bash", "-n", str(DEPLOY / "slurm.sh")], check=True)
