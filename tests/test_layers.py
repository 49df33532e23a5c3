"""types, errors, config <- equations <- parts <- training <- commands: read from the imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

import lookfurther.types

PACKAGE = Path(lookfurther.types.__file__).parent

# A name is a module of the package, or a folder with all it holds; "" is the package itself.
LAYERS = {
    "ground": ("types", "array_api", "system", "errors", "validation", "config", "presets"),
    "equations": ("transforms", "returns", "losses", "exploration", "priorities"),
    "parts": (
        "networks",
        "master_weights",
        "acceleration",
        "autograd",
        "adam",
        "gpu",
        "envs",
        "rollout",
        "actor",
        "replay",
        "demos",
        "objective",
        "learner",
    ),
    "training": ("training",),
    "commands": (
        "",
        "__main__",
        "agent",
        "evaluation",
        "video",
        "report",
        "recorder",
        "cli",
    ),
}
RANK = {name: rank for rank, names in enumerate(LAYERS.values()) for name in names}


def module_name(path: Path) -> str:
    """lookfurther/envs/atari.py -> lookfurther.envs.atari."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer_name(module: str) -> str:
    """The name under which LAYERS knows a module: what follows `lookfurther.`, to the next dot."""
    return module.partition(".")[2].partition(".")[0]


def absolute_import(module: str, node: ast.ImportFrom) -> str:
    """What `from ..x import y` in `module` names, in full."""
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    return resolve_name("." * node.level + (node.module or ""), package)


def imported_modules(module: str) -> set[str]:
    """Every module that `module` imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = absolute_import(module, node)
            inner = {f"{source}.{alias.name}" for alias in node.names} & FILES.keys()
            found |= inner if len(inner) == len(node.names) else inner | {source}
    return found


def imported_package_modules(module: str) -> set[str]:
    return {name for name in imported_modules(module) if name.partition(".")[0] == "lookfurther"}


@pytest.mark.parametrize("module", FILES)
def test_every_module_has_a_layer(module: str) -> None:
    assert layer_name(module) in RANK, f"give {module} a layer in tests/test_layers.py"


@pytest.mark.parametrize("module", FILES)
def test_imports_point_left(module: str) -> None:
    """A layer imports what is left of it."""
    here = layer_name(module)
    for other in imported_package_modules(module):
        there = layer_name(other)
        assert RANK[there] <= RANK[here], f"{module} imports {other}"


@pytest.mark.parametrize("module", [m for m in FILES if layer_name(m) in LAYERS["equations"]])
def test_equations_know_torch_and_types_alone(module: str) -> None:
    """Tensors in, tensors out: no settings, no other library."""
    roots = {name.partition(".")[0] for name in imported_modules(module)} - sys.stdlib_module_names
    assert roots <= {"lookfurther", "torch"}
    assert {layer_name(name) for name in imported_package_modules(module)} <= {
        *LAYERS["equations"],
        "types",
        "array_api",
    }


def test_only_the_runtime_knows_ray() -> None:
    knows = {m for m in FILES if "ray" in {name.partition(".")[0] for name in imported_modules(m)}}
    assert {layer_name(m) for m in knows} <= set(LAYERS["training"])


def test_settings_environments_and_the_command_line_start_without_torch() -> None:
    """In a fresh process: torch takes seconds to import, and `--help` should not wait for it."""
    light = ("cli", "config", "presets", "errors", "types", "envs")
    modules = [module for module in FILES if layer_name(module) in light]
    assert {"lookfurther.config", "lookfurther.types"} <= set(modules)
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name + ' imports torch'\n"
    )
    command = [sys.executable, "-c", script, *modules]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent, check=False)
    assert done.returncode == 0, done.stderr
