"""The order of layers, checked against the imports of every module."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import lookfurther.types

PACKAGE = Path(lookfurther.types.__file__).parent

# A layer imports from itself and from the layers above it in this list. A name is a module of the
# package, or a folder with all its modules; "" is the package itself.
EQUATIONS = (
    "transforms",
    "returns",
    "losses",
    "exploration",
    "priorities",
    "schedules",
    "variants",
)
LAYERS = (
    (
        *("types", "errors", "array_api", "system", "settings"),
        *("config", "validation", "presets"),
    ),
    EQUATIONS,
    (
        *("networks", "master_weights"),
        *("autograd", "optimizers", "gpu"),
    ),
    ("replay", "envs", "actor", "rollout", "demos"),
    ("objective", "objective_variants", "learner"),
    ("training",),
    ("agent", "evaluation", "analysis"),
    ("video", "report", "recorder", "sharing"),
    ("cli", "__main__", ""),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def module_name(path: Path) -> str:
    """lookfurther/envs/atari.py -> lookfurther.envs.atari."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer_name(module: str) -> str:
    """lookfurther.envs.atari -> envs, its name in LAYERS."""
    return module.partition(".")[2].partition(".")[0]


def absolute_import(module: str, node: ast.ImportFrom) -> str:
    """The absolute name of the module that `from ..x import y` in `module` imports from."""
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    return resolve_name("." * node.level + (node.module or ""), package)


def imported_modules(module: str, top_level: bool = False) -> set[str]:
    """All modules that `module` imports, or only those imported when it is itself imported."""
    tree = ast.parse(FILES[module].read_text())
    imported: set[str] = set()
    for node in run_at_import(tree) if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = absolute_import(module, node)
            inner = {f"{source}.{alias.name}" for alias in node.names} & FILES.keys()
            imported |= inner if len(inner) == len(node.names) else inner | {source}
    return imported


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes outside of functions and of `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        is_type_check = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not is_type_check and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from run_at_import(child)


def imported_package_modules(module: str, top_level: bool = False) -> set[str]:
    """Modules of this package; without the package itself, which every import includes."""
    return {m for m in imported_modules(module, top_level) if m.startswith("lookfurther.")}


def assert_no_circle(graph: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle of imports: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("module", FILES)
def test_every_module_has_a_layer(module: str) -> None:
    assert layer_name(module) in RANK, f"add {module} to LAYERS in tests/test_layers.py"


def test_every_layer_has_modules() -> None:
    assert RANK.keys() == {layer_name(module) for module in FILES}


@pytest.mark.parametrize("module", FILES)
def test_imports_follow_layer_order(module: str) -> None:
    """All imports, including those in functions and for type checking."""
    for imported in imported_package_modules(module):
        assert RANK[layer_name(imported)] <= RANK[layer_name(module)], f"{module}: {imported}"


def test_names_in_layers_have_no_circles() -> None:
    """All imports, including those in functions and for type checking."""
    graph: dict[str, set[str]] = {name: set() for name in RANK}
    for module in FILES:
        imported = {layer_name(m) for m in imported_package_modules(module)}
        graph[layer_name(module)] |= imported - {layer_name(module)}
    assert_no_circle(graph)


def test_modules_have_no_circles() -> None:
    """Imports that run when a module is imported, within folders too."""
    graph = {module: imported_package_modules(module, top_level=True) for module in FILES}
    assert_no_circle({module: imported - {module} for module, imported in graph.items()})


@pytest.mark.parametrize("module", [m for m in FILES if layer_name(m) in EQUATIONS])
def test_equations_import_torch_and_types_only(module: str) -> None:
    """Tensors in, tensors out: no settings, no other library."""
    roots = {name.partition(".")[0] for name in imported_modules(module)} - sys.stdlib_module_names
    assert roots <= {"lookfurther", "torch"}
    names = {layer_name(name) for name in imported_package_modules(module)}
    assert names <= {*EQUATIONS, "types", "array_api"}


def test_config_envs_and_cli_start_without_torch() -> None:
    """In a new process: importing torch takes seconds, and `--help` should not wait for it."""
    light = (
        "cli",
        "settings",
        "config",
        "validation",
        "presets",
        "errors",
        "types",
        "envs",
    )
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
