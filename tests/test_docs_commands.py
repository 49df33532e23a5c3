"""Every documented command runs as it is written; settings at its end make it short.

The commands of a page run one after another in one folder, as a reader would run them, so that
most of them make what the next ones need. A page's `GIVEN` makes the rest.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest

from lookfurther.cli import train
from lookfurther.cli.main import main
from lookfurther.cli.parsing import parse_options
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.envs import get_spec
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.evaluation import suite
from lookfurther.presets import preset
from lookfurther.training.train import default_run_dir
from tests.sample_recordings import asterix_recording, montezuma_recording, write_demo
from tests.test_docs import COMMANDS, GUIDE, fences, shell

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

pytest.importorskip("ale_py")
README, DEMONSTRATIONS = "README.md", "docs/demonstrations.md"
RESULTS, PERFORMANCE = "docs/results.md", "docs/performance.md"

# What does not run here, and why. `test_docs.py` has all of it parsed by its own parser.
NOT_RUN = {
    "pip install": "takes packages from the network",
    "make train": "installs first; its job is python -m examples.unlock_pickup, which runs",
    "make test": "runs this",
    "tensorboard": "another project's server",
    "lookfurther checkpoint": "needs a run in progress: test_holder.py has one",
    "lookfurther demos search": "Montezuma's first points take minutes; test_search.py has others",
    "python -m analysis": "test_benchmarks.py runs them",
    "python -m benchmarks": "test_benchmarks.py runs them, but for those that need more",
}

# What makes a command short: settings that follow those of the page.
RUN = (
    "--run.steps 120 --run.log-period 60 --run.threads 1 --run.device cpu --actor.lanes 4"
    " --replay.capacity 400 --replay.learning-starts 60 --network.hidden 16"
    " --learner.agent-items 16"
)
ATARI = "--network.convolutions 4 4 4"
SHORT = {
    "train --resume": f"{RUN} --run.steps 200",
    "train": RUN,
    "bench": f"{RUN} {ATARI} --seconds 0.05",
    "evaluate": "--episodes 2 --lanes 2",
    "video": "--episodes 1",
    "demos agent": "--episodes 1",
}
SHORT_SUITE = {
    "seeds = [0, 1, 2]": "seeds = [0]",
    ', "ALE/PrivateEye-v5"]': "]",
    "minutes = 60": "steps = 120",
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
    """An empty folder to work in, which is the reader's home too; evaluations of two episodes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / ".minari/datasets"))
    monkeypatch.chdir(tmp_path)

    def evaluate(agent: Any, episodes: int, real: Any = evaluation.evaluate, **more: Any) -> Any:
        return real(agent, min(episodes, 2), **more)

    monkeypatch.setattr("examples.unlock_pickup.evaluate", evaluate)
    return tmp_path


def shortened(words: list[str]) -> list[str]:
    """The words of a command, and the settings that make it short."""
    spoken = " ".join(words)
    names = [name for name in SHORT if all(w in words for w in name.split())]
    more = SHORT[names[0]].split() if names and words[0] == names[0].split()[0] else []
    if words[0] == "train" and "ALE/" in spoken:
        more += ATARI.split()
    return [os.path.expanduser(word) for word in [*words, *more]]


def run(words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command, as a shell would run it."""
    program, *rest = words
    if program == "python":
        run_module(rest, monkeypatch)
    elif rest[0] == "record":
        record(rest, home)
    elif "--watch" in rest:
        watch(rest, home)
    elif "--help" in rest:
        with pytest.raises(SystemExit, match=r"^0$"):
            main(rest)
    else:
        if rest[0] == "train" and "--resume" not in rest:
            shutil.rmtree(folder_of(rest[1:]), ignore_errors=True)
        assert main(shortened(rest)) == 0, " ".join(words)


def folder_of(words: list[str]) -> str:
    """Where the run of a `train` goes."""
    name, scale, rest = train.split_preset(words)
    given = parse_options(train.TrainOptions, train.TrainOptions(preset(name, scale)), rest, "docs")
    return default_run_dir(given.config)


def run_module(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The main job with hardly any training: it says that it missed its bar."""
    assert words[:2] == ["-m", "examples.unlock_pickup"]
    monkeypatch.setattr(sys, "argv", [*words[1:], "--steps", "640"])
    json = Path(words[words.index("--json") + 1])
    json.parent.mkdir(exist_ok=True)
    missed = importlib.import_module("examples.unlock_pickup").main()
    assert missed == ("--no-demos" not in words)
    assert json.read_text().startswith("{")


@contextlib.contextmanager
def served(words: list[str], home: Path) -> Iterator[ClientConnection]:
    """The page that a command serves; Ctrl-C ends it."""
    from tests.test_recorder_session import ServerProcess

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
    """Play a while on the page, and save."""
    from tests.test_recorder_session import play_until

    with served(words, home) as page:
        page.send('{"kind": "keys", "number": 1, "held": ["right"]}')
        play_until(page, lambda status: status["steps"] >= 12)
        page.send('{"kind": "save"}')
        play_until(page, lambda status: status["steps"] == 0)
    (episode,) = catalog.open_set(words[words.index("--name") + 1]).episodes
    assert episode.audit is not None
    assert episode.audit.verified


def watch(words: list[str], home: Path) -> None:
    """See a frame on the page."""
    with served(words, home) as page:
        while not isinstance(page.recv(timeout=120), bytes):
            pass


# What the pages take for granted


def played(name: str, env: str, frames: int) -> None:
    """A set of one episode of random buttons."""
    buttons = np.random.default_rng(0).integers(0, 18, frames // 4).astype(np.uint8).repeat(4)
    storage.save_episodes(
        name, [episode_from_log(InputLog(buttons), env)], get_spec(env, EnvConfig()), "a test"
    )


def given_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pass


def given_recordings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of others, a dataset of Minari's, what a search found, and a run of Pong."""
    from tests.test_importers import make_minari_dataset

    write_demo(home / "MontezumaRevenge.demo", montezuma_recording())
    played("montezuma/found-v0", "ALE/MontezumaRevenge-v5", 60)
    (home / "recordings").mkdir()
    for name in ("Asterix1.demo", "Asterix2.demo"):
        write_demo(home / "recordings" / name, asterix_recording())
    env = gymnasium.make("ALE/Breakout-v5", repeat_action_probability=0.0, frameskip=4)
    theirs = home / ".minari/datasets/atari/breakout/expert-v0"
    theirs.parent.mkdir(parents=True)
    with monkeypatch.context() as inner:
        make_minari_dataset(home, inner, env, jpeg_encoding=False).rename(theirs)
    words = "train no-demos --scale small --env ALE/Pong-v5"
    assert main(shortened(words.split())) == 0


def given_a_main_job(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make train` leaves, sets, and the guide's own suite, made short."""
    words = "-m examples.unlock_pickup --json runs/unlock.json"
    run_module(words.split(), monkeypatch)
    played("pong/mine-v0", "ALE/Pong-v5", 400)
    played("expert/montezuma_revenge-v0", "ALE/MontezumaRevenge-v5", 60)
    played("expert/private_eye-v0", "ALE/PrivateEye-v5", 60)
    ((_, text),) = fences(GUIDE, "toml")
    assert len(suite.build_jobs(tomllib.loads(text), home / "runs/mine")) == 2 * 2 * 3
    for long, short in SHORT_SUITE.items():
        assert text.count(long) == 1
        text = text.replace(long, short)
    (home / "my.toml").write_text(text)


def given_a_recording(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_demo(home / "MontezumaRevenge.demo", montezuma_recording())


GIVEN: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    README: given_nothing,
    DEMONSTRATIONS: given_recordings,
    GUIDE: given_a_main_job,
    RESULTS: given_a_recording,
    PERFORMANCE: given_nothing,
}


def not_run(words: list[str]) -> bool:
    return any(" ".join(words).startswith(name) for name in NOT_RUN)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a minute of work, but on a machine that may have much else to do
@pytest.mark.filterwarnings("ignore::UserWarning")  # of Gymnasium's wrappers and Minari
@pytest.mark.parametrize("page", GIVEN)
def test_commands_of_a_page_run(page: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GIVEN[page](home, monkeypatch)
    for words in shell(page):
        if not not_run(words):
            run(words, home, monkeypatch)


def test_every_page_with_commands_is_run() -> None:
    assert {page for page, _ in COMMANDS} == set(GIVEN)
    spoken = [" ".join(words) for _, words in COMMANDS]
    assert all(any(line.startswith(name) for line in spoken) for name in NOT_RUN)


def test_the_sequence_of_the_page_is_imported(home: Path) -> None:
    ((_, code),) = fences(DEMONSTRATIONS, "python")
    exec(code, {})
    assert main(["demos", "import", "idle.npz", "--name", "idle"]) == 0
    (episode,) = catalog.open_set("idle").episodes
    assert len(episode) == 3600 / 4
