"""Push agents and demonstration sets to the Hugging Face Hub, and pull them.

A pulled file is data from a stranger: only files of known names and bounded sizes are downloaded,
they are checked before they appear, and nothing in them is run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lookfurther.demos import catalog
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.report.model_card import export_run
from lookfurther.sharing.cards import render_set_card
from lookfurther.sharing.contents import SHARED_KINDS, RemoteFile, select_files
from lookfurther.system.files import atomic_replace
from lookfurther.training.checkpoints import checkpoint

COMMIT_MESSAGE = "Upload with lookfurther"
# Names of the HTTP library's errors: it is not imported before it is needed.
CONNECTION_ERRORS = ("ConnectError", "ConnectTimeout", "ConnectionError")


def open_hub() -> Any:
    """The client of the Hub; $HF_ENDPOINT and $HF_TOKEN apply as usual."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise ConfigError(
            f"push and pull need huggingface_hub ({error}): pip install 'lookfurther[hub]'"
        ) from None
    disable_progress_bars()
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


@contextmanager
def _convert_hub_errors(repo: str) -> Iterator[None]:
    """One-line errors that name the repository."""
    try:
        yield
    except LookFurtherError:
        raise
    except Exception as error:
        if not _is_client_error(error):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if type(error).__name__ in CONNECTION_ERRORS:
            raise LookFurtherError(
                f"{repo}: the Hub cannot be reached ({lines[0]}):"
                " check the network, or HF_ENDPOINT if you use another server"
            ) from error
        raise LookFurtherError(f"{repo}: {lines[0]}") from error


def _is_client_error(error: Exception) -> bool:
    """Whether the Hub's client or its HTTP library raised an error; not a bug of this package."""
    is_http_error = type(error).__module__.startswith("httpx")
    return is_http_error or isinstance(error, OSError | ValueError | RuntimeError)


# Push


def is_agent(source: str) -> bool:
    """Whether a path is a run, an export or a checkpoint, and not the name of a set."""
    path = Path(source)
    return (path / "config.json").exists() or checkpoint.is_checkpoint(path)


def push(source: str, repo: str, private: bool = False) -> str:
    """Upload a run, an export or a demonstration set with its card; returns the address."""
    hub = open_hub()
    with tempfile.TemporaryDirectory() as folder:
        if is_agent(source):
            files = _agent_files(Path(source), Path(folder) / "export")
            return _upload(hub, "agent", repo, files, private)
        return _upload(hub, "demos", repo, _set_files(source), private)


def _agent_files(run: Path, export: Path) -> dict[str, Path | bytes]:
    """The files of an export, which is made now unless `run` is one."""
    is_export = (run / "README.md").exists() and not (run / "checkpoints").exists()
    folder = run if is_export else export_run(run, export)
    pattern = SHARED_KINDS["agent"].files
    names = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    return {name: folder / name for name in names if pattern.fullmatch(name)}


def _set_files(name: str) -> dict[str, Path | bytes]:
    """The files of a set and its card."""
    set_id = catalog.find_set(name)
    if set_id.startswith(catalog.SHIPPED_PREFIX):
        raise ConfigError(f"{name} comes with the package: there is no need to push it")
    folder = catalog.set_path(set_id)
    card = render_set_card(Path(set_id).name, catalog.describe_set(set_id))
    data = {f"data/{file}": folder / "data" / file for file in ("main_data.hdf5", "metadata.json")}
    return {"README.md": card.encode()} | data


def _upload(
    hub: Any, kind: str, repo: str, files: Mapping[str, Path | bytes], private: bool
) -> str:
    """One commit that replaces what an earlier push uploaded; other files stay."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    repo_type, pattern, _ = SHARED_KINDS[kind]
    with _convert_hub_errors(repo):
        url = hub.create_repo(repo, repo_type=repo_type, private=private, exist_ok=True)
        existing = hub.list_repo_files(repo, repo_type=repo_type)
        outdated = [n for n in existing if pattern.fullmatch(n) and n not in files]
        operations = [CommitOperationAdd(name, source) for name, source in files.items()]
        operations += [CommitOperationDelete(name) for name in outdated]
        hub.create_commit(repo, operations, commit_message=COMMIT_MESSAGE, repo_type=repo_type)
    return str(url)


# Pull


def default_folder(repo: str, kind: str) -> Path:
    """agents/NAME, or the folder of the set OWNER/NAME in Minari's folder."""
    if kind == "agent":
        return Path("agents") / Path(repo).name
    return catalog.set_path(catalog.new_set_id(repo))


def pull(repo: str, kind: str, out: Path) -> Path:
    """Download a repository to a new folder, completely and checked, or not at all."""
    if out.exists():
        raise ConfigError(f"{out} exists: remove it or choose another --out")
    hub, shared = open_hub(), SHARED_KINDS[kind]
    with _convert_hub_errors(repo):
        info = hub.repo_info(repo, repo_type=shared.repo_type, files_metadata=True)
        listed = [RemoteFile(file.rfilename, file.size) for file in info.siblings or ()]
        chosen = select_files(repo, kind, listed)
        with atomic_replace(out) as folder:
            folder.mkdir()
            for file in chosen:
                _download(hub, repo, shared.repo_type, info.sha, file, folder)
            shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's own
            shared.check(folder)
    return out


def _download(
    hub: Any, repo: str, repo_type: str, revision: str, file: RemoteFile, folder: Path
) -> None:
    """Download one file; raises if it does not have the size that was listed."""
    options = {"repo_type": repo_type, "revision": revision, "local_dir": folder}
    path = Path(hub.hf_hub_download(repo, file.name, **options))
    if path.is_symlink() or path.stat().st_size != file.size:
        raise LookFurtherError(f"{repo}: {file.name} does not have {file.size} bytes as listed")
