"""pip can install the requirements: ours are compatible with the published ones."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PYTHONS, MACHINES = ("3.11", "3.12", "3.13"), ("x86_64", "aarch64")

# Requirements of the pinned versions on PyPI, the same for these Pythons and machines.
# A new pin needs its own entry: the `Requires-Dist` lines of its metadata, without extras.
PUBLISHED_VERSIONS = {
    "torch==2.13.0": (
        "filelock",
        "typing-extensions>=4.10.0",
        "setuptools>=77.0.3",
        "sympy>=1.13.3",
        "networkx>=2.5.1",
        "jinja2",
        "fsspec>=0.8.5",
        "cuda-toolkit==13.0.3; platform_system == 'Linux'",
        "cuda-bindings<14,>=13.0.3; platform_system == 'Linux' and python_version < '3.15'",
        "nvidia-cudnn-cu13==9.20.0.48; platform_system == 'Linux'",
        "nvidia-cusparselt-cu13==0.8.1; platform_system == 'Linux'",
        "nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'",
        "nvidia-nvshmem-cu13==3.4.5; platform_system == 'Linux'",
        "triton==3.7.1; platform_system == 'Linux' and python_version < '3.15'",
    ),
    "triton==3.7.1": ("importlib-metadata; python_version < '3.10'",),
    "ale-py==0.12.1": ("numpy>1.20", "typing-extensions; python_version < '3.11'"),
    "jinja2==3.1.6": ("markupsafe>=2.0",),
    "ruff==0.17.4": (),
    "pyright==1.1.414": ("nodeenv>=1.6.0", "typing-extensions>=4.1"),
}


def requirement_lines(text: str) -> list[str]:
    """The lines of a constraints file without comments."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def declared_requirements() -> list[str]:
    """The requirements of the package and of the extras that `make` installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = ("atari", "docs", "hub", "minigrid", "ray", "record", "tune", "video", "dev")
    found = project["dependencies"] + [line for name in names for line in extras[name]]
    return [line for line in found if not line.startswith(project["name"])]


def combine_specifiers(
    requirements: list[str], python: str, machine: str
) -> dict[str, SpecifierSet]:
    """The combined specifier of each package, on one kind of machine."""
    found: dict[str, SpecifierSet] = {}
    where = {"python_version": python, "platform_machine": machine, "platform_system": "Linux"}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate(where):
            name = canonicalize_name(requirement.name)
            found[name] = found.get(name, SpecifierSet()) & requirement.specifier
    return found


def allows_some_version(specifier: SpecifierSet) -> bool:
    """Whether a minimum or exact version in the specifier satisfies all of it."""
    named = [part.version for part in specifier if part.operator in ("==", ">=")]
    return not named or any(specifier.contains(version) for version in named)


def find_conflicts(constraints: str, python: str, machine: str) -> Iterator[str]:
    """The packages without a version for the constraints, pyproject.toml and PyPI's metadata."""
    pins = requirement_lines(constraints)
    published = [line for pin in pins for line in PUBLISHED_VERSIONS.get(pin, ())]
    for name, specifier in combine_specifiers(
        [*pins, *declared_requirements(), *published], python, machine
    ).items():
        if not allows_some_version(specifier):
            yield f"{name}{specifier}"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_fit_published_requirements(python: str, machine: str) -> None:
    assert list(find_conflicts(CONSTRAINTS, python, machine)) == []


@pytest.mark.parametrize(
    ("pin", "found"),
    [("triton==3.6.0", "triton"), ("ruff==0.8.0", "ruff"), ("torch==2.9.0", "torch")],
)
def test_conflicting_pin_is_found(pin: str, found: str) -> None:
    """A triton other than torch's, and versions older than pyproject.toml allows."""
    (conflict,) = find_conflicts(f"{CONSTRAINTS}\n{pin}\n", "3.11", "x86_64")
    assert conflict.startswith(found)


def test_published_requirements_match_pins() -> None:
    assert requirement_lines(CONSTRAINTS) == list(PUBLISHED_VERSIONS)


def test_installed_versions_are_within_bounds() -> None:
    for line in declared_requirements():
        requirement = Requirement(line)
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            continue  # of an extra that is not installed, or of another system
        assert requirement.specifier.contains(installed, prereleases=True), line


def test_quickstart_names_tested_torch_and_triton_versions() -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()
    for pin in requirement_lines(CONSTRAINTS):
        if pin.startswith(("torch==", "triton==")):
            assert pin.replace("==", " ") in page
