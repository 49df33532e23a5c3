"""Every documented command runs as written, with additional settings that make it short.

The commands of a page run in order in one folder, so that most of them create what later ones
need. `PREPARE` creates the rest for each page.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lookfurther.cli import train
from lookfurther.cli.main import main
from lookfurther.cli.options.preset_options import asks_for_help
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.envs import get_spec
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.evaluation import suite
from lookfurther.training.train import default_run_dir
from tests.doc_files import prepare_comparison, save_breakout_dataset
from tests.doc_pages import COMPARISON, RUNS, fences
from tests.sample_recordings import asterix_recording, montezuma_recording, write_demo
from tests.test_docs_shell import COMMANDS, shell

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

pytest.importorskip("ale_py")
DEMONSTRATIONS = "docs/demonstrations.md"
RESULTS, PERFORMANCE = "docs/results.md", "docs/performance.md"

# Commands that do not run here, and why. `test_docs.py` parses all of them.
NOT_RUN = {
    "pip install": "downloads packages",
    "make train": "installs first; runs python -m examples.unlock_pickup, which is tested",
    "make test": "runs this test",
    "tensorboard --logdir": "another project's server",
    "--run.loggers tensorboard wandb": "needs an account; test_loggers.py has a stand-in",
    "--cluster": "starts Ray; test_cluster_ray.py has such runs",
    "lookfurther cluster": "starts Ray; test_cluster_ray.py runs it",
    "lookfurther checkpoint": "needs a run in progress; test_run_process.py has one",
    "lookfurther push": "needs an account; test_sharing.py has a local server",
    "lookfurther pull": "downloads; test_sharing.py has a local server",
    "PrivateEye.demo": "a recording of a human; the page's other import has a sample",
    "Pong.demo": "a recording of a human, likewise",
    "Pitfall.demo": "a recording of a human, likewise",
    "lookfurther demos search": "takes minutes; test_go_explore.py has shorter ones",
    "lookfurther demos recover": "needs a trained agent; test_demos_recover.py has a stuck one",
    "python -m analysis": "test_benchmarks.py runs them",
    "experiments": "takes an hour or a night; test_experiments_page.py has a short study",
    "benchmarks/dopamine": "takes minutes on a GPU; test_dopamine.py builds the jobs",
    "python -m benchmarks": "test_benchmarks.py runs them, except those that need a GPU or peers",
}

# Additional settings that make a command short.
RUN = (
    "--run.steps 120 --run.log-period 60 --run.threads 1 --run.device cpu --actor.lanes 4"
    " --replay.capacity 400 --replay.learning-starts 60 --network.hidden 16"
    " --learner.agent-items 16"
)
ATARI = "--network.convolutions 4 4 4"
SHORT = {
    "train --resume": f"{RUN} --run.steps 200",
    "train": RUN,
    "tune": f"{RUN} --replay.capacity 4000 --replay.learning-starts 400 --trials 1 --episodes 1",
    "clone": f"--epochs 1 --run.threads 1 --run.device cpu --network.hidden 16 {ATARI}",
    "bench": f"{RUN} {ATARI} --seconds 0.05",
    "evaluate": "--episodes 2 --lanes 2",
    "analyse": "--every 20 --steps 5 --episodes 2 --max-steps 20 --device cpu",
    "video": "--episodes 1",
    "demos agent": "--episodes 1",
}
SHORT_SUITE = {
    "seeds = [0, 1, 2]": "seeds = [0]",
    ', "ALE/PrivateEye-v5"]': "]",
    "minutes = 60": "steps = 120",
    "episodes = 200": "episodes = 1",
    'starts = ["noop", "human"]': 'starts = ["noop"]',
    "[settings.learner]": """[settings]
actor.lanes = 4
replay.capacity = 400
replay.learning_starts = 60
network.hidden = [16]
network.convolutions = [4, 4, 4]
run.threads = 1
run.device = "cpu"
[settings.learner]""",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty home folder; evaluate two episodes only."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / ".minari/datasets"))
    monkeypatch.chdir(tmp_path)

    def evaluate(agent: Any, episodes: int, real: Any = evaluation.evaluate, **more: Any) -> Any:
        return real(agent, min(episodes, 2), **more)

    monkeypatch.setattr("examples.unlock_pickup.evaluate", evaluate)
    return tmp_path


def shortened(words: Sequence[str]) -> list[str]:
    """Append the settings that make a command short."""
    line = " ".join(words)
    names = [name for name in SHORT if all(w in words for w in name.split())]
    more = SHORT[names[0]].split() if names and words[0] == names[0].split()[0] else []
    if words[0] == "train" and "ALE/" in line:
        more += ATARI.split()
    return [os.path.expanduser(word) for word in [*words, *more]]


def run(words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one command."""
    program, *rest = words
    if program == "python":
        run_module(rest, monkeypatch)
    elif rest[0] == "record":
        record(rest, home)
    elif "--watch" in rest:
        watch(rest, home)
    elif asks_for_help(rest):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(rest)
    else:
        if rest[0] == "train" and "--resume" not in rest:
            shutil.rmtree(folder_of(rest[1:]), ignore_errors=True)
        assert main(shortened(rest)) == 0, " ".join(words)


def folder_of(words: list[str]) -> str:
    """Return the run folder of a `train` command."""
    return default_run_dir(train.parse_train_options(words).config)


def run_module(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the UnlockPickup example with hardly any training: it misses its target score."""
    assert words[:2] == ["-m", "examples.unlock_pickup"]
    monkeypatch.setattr(sys, "argv", [*words[1:], "--steps", "640"])
    json = Path(words[words.index("--json") + 1])
    json.parent.mkdir(exist_ok=True)
    missed = importlib.import_module("examples.unlock_pickup").main()
    assert missed == ("--no-demos" not in words)
    assert json.read_text().startswith("{")


@contextlib.contextmanager
def served(words: list[str], home: Path) -> Iterator[ClientConnection]:
    """Connect to the page that a command serves, and stop it with SIGINT."""
    from tests.recorder_pages import ServerProcess

    name, *rest = words
    server = ServerProcess(*rest, name=name, folder=home)
    try:
        with server.open_websocket() as page:
            yield page
    except BaseException:
        server.stop(signal.SIGKILL)
        raise
    assert server.stop(signal.SIGINT) == 0


def record(words: list[str], home: Path) -> None:
    """Play a few steps on the page and save."""
    from tests.recorder_pages import play_until

    with served(words, home) as page:
        page.send('{"kind": "keys", "number": 1, "held": ["right"]}')
        play_until(page, lambda status: status["steps"] >= 12)
        page.send('{"kind": "save"}')
        play_until(page, lambda status: status["steps"] == 0)
    (episode,) = catalog.open_set(words[words.index("--name") + 1]).episodes
    assert episode.audit is not None
    assert episode.audit.verified


def watch(words: list[str], home: Path) -> None:
    """Wait for a frame on the page."""
    with served(words, home) as page:
        while not isinstance(page.recv(timeout=120), bytes):
            pass


# Preparation


def save_random_set(name: str, env: str, frames: int) -> None:
    """Save a set with one episode of random actions."""
    actions = np.random.default_rng(0).integers(0, 18, frames // 4).astype(np.uint8).repeat(4)
    storage.save_episodes(
        name, [episode_from_log(InputLog(actions), env)], get_spec(env, EnvConfig()), "a test"
    )


def prepare_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pass


def prepare_recordings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings, a Minari dataset, a searched set, and a run of Pong."""
    write_demo(home / "MontezumaRevenge.demo", montezuma_recording())
    save_random_set("montezuma/found-v0", "ALE/MontezumaRevenge-v5", 60)
    (home / "recordings").mkdir()
    for name in ("Asterix1.demo", "Asterix2.demo"):
        write_demo(home / "recordings" / name, asterix_recording())
    save_breakout_dataset(home, monkeypatch)
    words = "train no-demos --scale small --env ALE/Pong-v5"
    assert main(shortened(words.split())) == 0


def prepare_pong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of Pong."""
    save_random_set("pong/mine-v0", "ALE/Pong-v5", 400)


def prepare_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of `make train`, a run of Pong, expert sets, and the page's suite, made short."""
    words = "-m examples.unlock_pickup --json runs/unlock.json"
    run_module(words.split(), monkeypatch)
    prepare_pong(home, monkeypatch)
    words = "train apex-dqfd --scale small --env ALE/Pong-v5 --demos pong/mine"
    assert main(shortened(words.split())) == 0
    save_random_set("expert/montezuma_revenge-v0", "ALE/MontezumaRevenge-v5", 60)
    save_random_set("expert/private_eye-v0", "ALE/PrivateEye-v5", 60)
    ((_, text),) = fences(RUNS, "toml")
    assert len(suite.build_jobs(tomllib.loads(text), home / "runs/mine")) == 2 * 2 * 3
    for long, short in SHORT_SUITE.items():
        assert text.count(long) == 1
        text = text.replace(long, short)
    (home / "my.toml").write_text(text)


def prepare_sets(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two recordings and two sets."""
    write_demo(home / "MontezumaRevenge.demo", montezuma_recording())
    write_demo(home / "MontezumaRevenge1.demo", montezuma_recording())
    save_random_set("private-eye-v0", "ALE/PrivateEye-v5", 60)
    save_random_set("pitfall-v0", "ALE/Pitfall-v5", 60)


PREPARE: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    "README.md": prepare_nothing,
    "docs/quickstart.md": prepare_nothing,
    "docs/environments.md": prepare_nothing,
    COMPARISON: prepare_comparison,
    "docs/settings.md": prepare_pong,
    RUNS: prepare_runs,
    DEMONSTRATIONS: prepare_recordings,
    RESULTS: prepare_sets,
    PERFORMANCE: prepare_nothing,
}
PAGES = sorted({page for page, _ in COMMANDS})


def is_skipped(words: list[str]) -> bool:
    return any(name in " ".join(words) for name in NOT_RUN)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a minute on an idle machine
@pytest.mark.filterwarnings("ignore::UserWarning")  # from Gymnasium's wrappers and Minari
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_page_run(page: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PREPARE.get(page, prepare_sets)(home, monkeypatch)
    for words in shell(page):
        if not is_skipped(words):
            run(words, home, monkeypatch)


def test_skipped_commands_are_documented() -> None:
    assert set(PREPARE) <= set(PAGES)
    lines = [" ".join(words) for _, words in COMMANDS]
    assert all(any(name in line for line in lines) for name in NOT_RUN)


def test_documented_action_sequence_is_imported(home: Path) -> None:
    ((_, code),) = fences(DEMONSTRATIONS, "python")
    exec(code, {})
    assert main(["demos", "import", "idle.npz", "--name", "idle"]) == 0
    (episode,) = catalog.open_set("idle").episodes
    assert len(episode) == 3600 / 4
