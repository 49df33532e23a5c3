"""The wheel and the source distribution, built and installed as users get them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import lookfurther

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def run_command(command: list[str], folder: Path, **environment: str) -> str:
    """The output of a command; it finds none of this repository's modules."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution of a copy of the tracked files, built offline."""
    folder = tmp_path_factory.mktemp("build")
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if files.returncode:
        pytest.skip("not a git checkout")
    names = [os.fsdecode(name) for name in files.stdout.split(b"\0") if name]
    for name in names:
        if (ROOT / name).is_file() and not name.startswith(("docs/", "notes/", "tests/")):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    script = (
        "from setuptools import build_meta as b;"
        "print(b.build_wheel('../dist'));print(b.build_sdist('../dist'))"
    )
    (folder / "dist").mkdir()
    output = run_command([sys.executable, "-c", script], folder / "source")
    wheel, sdist = (
        folder / "dist" / name for name in re.findall(r"\S+\.(?:whl|gz)$", output, re.M)[-2:]
    )
    return wheel, sdist


def test_wheel_contains_the_package_alone(distributions: tuple[Path, Path]) -> None:
    wheel, _ = distributions
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "lookfurther",
        f"lookfurther-{lookfurther.__version__}.dist-info",
    }
    assert "lookfurther/py.typed" in names
    assert any(name.startswith("lookfurther/report/templates/") for name in names)


def test_source_distribution_contains_licence_and_readme(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= names


def test_description_has_absolute_addresses_only(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[0]) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
        metadata = message_from_string(archive.read(name).decode())
    addresses = re.findall(r"\]\(([^)]*)\)", str(metadata.get_payload()))
    assert addresses
    assert all(address.startswith("https://") for address in addresses)
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert metadata["Author"]


def test_installed_wheel_trains_outside_the_repository(
    distributions: tuple[Path, Path], tmp_path: Path
) -> None:
    """In a new virtual environment that uses the installed dependencies, without downloads."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = str(tmp_path / "venv" / "bin" / "python")
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(run_command([python, "-c", script], tmp_path).strip())
    install = ["install", "-q", "--no-deps", "--no-index", "--target", str(site)]
    run_command([sys.executable, "-m", "pip", *install, str(distributions[0])], tmp_path)
    # Below this environment's own packages, so the wheel is found before an editable install.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = run_command([python, "-c", "import lookfurther; print(lookfurther.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(site)
    settings = "--run.steps 60 --actor.lanes 2 --replay.learning-starts 24 --run.threads 1"
    train = f"train no-demos --scale small --env CartPole-v1 {settings}"
    output = run_command([python, "-m", "lookfurther", *train.split()], tmp_path)
    assert "run folder: runs/CartPole-v1-no-demos-0" in output
