"""Wrong, missing and odd arguments: each gives one line that names the problem, never a traceback.

`test_cli_errors.py` has the errors of `train`.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from lookfurther.cli import demos
from lookfurther.cli.main import COMMANDS, main

pytest.importorskip("ale_py")

# (command line, exit code, part of the message). The folder has the files of `folder` below.
BAD_COMMANDS = [
    ("--versio", 2, "unknown command '--versio': choose one of train,"),
    ("demos nope", 2, "unknown command 'nope': choose one of list,"),
    ("presets extra", 2, "Unrecognized options: extra"),
    ("demos list extra", 2, "Unrecognized options: extra"),
    # What is missing
    ("evaluate", 2, "evaluate needs RUN (run folder, or the word random"),
    ("export", 2, "export needs RUN (run folder (its best checkpoint"),
    ("export a", 2, "export needs --out (new folder)"),
    ("checkpoint", 2, "checkpoint needs RUN (run folder in which another process trains)"),
    ("video", 2, "video needs RUN (run folder, checkpoint or export)"),
    ("suite", 2, "suite needs FILE|NAME (a TOML file"),
    ("record", 2, "record needs ENV (environment id, such as"),
    ("report", 2, "report needs a run folder"),
    ("analyse", 2, "analyse needs RUN (run folder, checkpoint or export)"),
    ("analyse nope", 5, "nope holds no checkpoint"),
    ("clone", 2, "clone needs a preset: one of apex-dqfd,"),
    ("clone apex-dqfd", 2, "clone needs demonstrations: add --demos NAME"),
    ("tune", 2, "tune needs a preset: one of apex-dqfd,"),
    ("tune no-demos --env CartPole-v1 --trials 0", 2, "--trials must be 1 or more, not 0"),
    ("push", 2, "push needs RUN|SET (run folder, export, or name or path of a set)"),
    ("push nope owner/name", 4, "no demonstrations named nope"),
    ("pull", 2, "pull needs OWNER/NAME (repository on the Hub)"),
    ("cluster nope", 2, "unknown command 'nope': choose one of check"),
    ("cluster check", 2, "cluster check needs ADDRESS (local, auto, or HOST:PORT"),
    ("demos show", 2, "demos show needs NAME (the set: its id"),
    ("demos export", 2, "demos export needs NAME (the set) and OUT (FILE.npz;"),
    ("demos play shipped/freeway", 2, "demos play needs OUT (file to write: .gif or .mp4)"),
    ("demos verify", 2, "verify needs the name of a set"),
    ("demos merge", 2, "merge needs the names of the sets"),
    ("demos merge a b", 2, "a new set needs a name: give --name"),
    ("demos align shipped/freeway", 2, "a new set needs a name: give --name"),
    (
        "demos align shipped/freeway --name n --steps -1",
        2,
        "--steps must be 0 or more, not -1",
    ),
    ("demos retime shipped/freeway", 2, "a new set needs a name: give --name"),
    ("demos perturb shipped/freeway", 2, "a new set needs a name: give --name"),
    ("demos recover used", 2, "recover needs an aligned set: give --demos NAME"),
    (
        "demos recover used --demos a --name n --places 0",
        2,
        "--places must be at least 1, not 0",
    ),
    (
        "demos recover used --demos a --name n --episodes 32",
        2,
        "--episodes must be at most 31, not 32",
    ),
    ("demos import", 2, "import needs a file"),
    ("demos search Pong", 2, "a new set needs a name: give --name"),
    ("demos agent file.txt", 2, "a new set needs a name: give --name"),
    ("evaluate random", 2, "--env ENV is only for random play"),
    # What is not there, or is something else
    ("demos show nope", 4, "no demonstrations named nope: make or import them first"),
    ("demos show shipped/freewy", 4, "shipped/freewy: did you mean shipped/freeway?"),
    ("demos show file.txt", 4, "no demonstrations named file.txt"),
    ("demos export nope a.npz", 4, "no demonstrations named nope"),
    ("demos import nope.demo --name a", 4, "there is no file nope.demo"),
    ("demos import file.txt --name a", 4, "file.txt must be a .demo, .npz, .hdf5 file"),
    ("demos import empty --name a", 4, "empty holds no .demo, .npz, .hdf5 file"),
    ("demos import bad.npz --name a", 4, "bad.npz is not a readable action sequence"),
    ("demos agent nope --name a", 5, "nope holds no checkpoint"),
    ("demos search Nope --name a", 2, "doesn't exist in namespace ALE"),
    ("demos search Pong --name a --minutes nan", 2, "--minutes: 'nan' is not a finite number"),
    ("demos bot CartPole-v1 --name a", 4, "is not a BabyAI level"),
    ("evaluate nope", 5, "nope holds no checkpoint"),
    ("evaluate empty", 5, "empty holds no checkpoint"),
    ("evaluate file.txt", 5, "file.txt holds no checkpoint"),
    ("evaluate random --env Nope-v0", 2, "env 'Nope-v0'"),
    ("evaluate random --env Pong-v4", 2, "old or short name of an Atari game: use ALE/Pong-v5"),
    ("evaluate random --env CartPole-v1 --sticky 0.2", 2, "--sticky needs an Atari game"),
    ("report nope", 2, "nope"),
    ("report empty", 2, "empty"),
    ("report file.txt", 2, "file.txt"),
    ("video nope", 5, "nope holds no checkpoint"),
    ("export nope --out a", 5, "nope holds no checkpoint"),
    ("checkpoint nope", 2, "nope"),
    ("suite nope", 2, "nope"),
    ("suite bad.toml", 2, "bad.toml"),
    ("suite empty.toml", 2, "envs must be a list of texts, each once, not []"),
    ("suite empty", 2, "empty"),
    ("suite ablation --parallel 0", 2, "--parallel must be at least 1, not 0"),
    ("train no-demos --env CartPole-v1 --init nope --actor.lanes 1", 5, "nope holds no checkpoint"),
    ("train no-demos --env PongNoFrameskip-v4", 2, "name of an Atari game: use ALE/Pong-v5"),
    ("train no-demos --env Pong-v4", 2, "old or short name of an Atari game: use ALE/Pong-v5"),
    ("train no-demos --env space_invaders", 2, "Atari game: use ALE/SpaceInvaders-v5"),
    ("train no-demos --env CartPole-v1 --run.folder file.txt", 2, "cannot be a run folder"),
    ("train no-demos --env CartPole-v1 --run.folder used", 2, "used already holds a run"),
    (
        "clone apex-dqfd --env CartPole-v1 --demos nope --run.folder used",
        2,
        "used already holds a run: choose another --run.folder",
    ),
    ("train no-demos --env .:CartPole-v1", 2, "env '.:CartPole-v1': "),
    ("train no-demos --env CartPole-v1 --environment.wrappers .:A", 2, "write it as module:Class"),
    ("train no-demos --env CartPole-v1 --run.seed 1e30", 2, "run.seed must be 0 ... 2^63 - 1"),
    ("bench nope", 2, "unknown preset 'nope'"),
    ("train tuned", 2, "tuned settings need an environment: set env to one of CartPole-v1"),
    ("train tuned --env Nope-v0", 2, "no tuned settings for Nope-v0: there are some for"),
    ("tune tuned --env CartPole-v1 --scale small", 2, "have their own scale: leave it out"),
    # Numbers and files
    ("bench no-demos --seconds 0", 2, "--seconds must be above 0"),
    ("bench no-demos --json empty", 2, "--json empty cannot be written: it is a folder"),
    ("demos show shipped/freeway --sheet file.txt/a.png", 2, "a.png cannot be written: [Errno "),
    ("demos show shipped/freeway --sheet a.txt", 2, "--sheet a.txt must end in .png"),
    ("demos play shipped/freeway a.avi", 2, "a.avi must end in .gif or .mp4"),
    ("demos play shipped/freeway a.gif --speed 0", 2, "--speed must be above 0"),
    ("demos play shipped/freeway a.gif --scale -1", 2, "--scale must be 0 ... 32, not -1"),
    ("demos play shipped/freeway a.gif --scale 1e9", 2, "--scale must be 0 ... 32"),
    ("demos play shipped/freeway a.gif --episode x", 2, "--episode: 'x' is not a whole number"),
    ("demos export shipped/freeway a.txt", 2, "a.txt must end in .npz"),
    ("demos export shipped/freeway file.txt/a.npz", 2, "OUT file.txt/a.npz cannot be written"),
    ("demos agent used --name a --epsilon 2", 2, "epsilon must be 0 ... 1, not 2"),
    ("evaluate random --env CartPole-v1 --episodes 1.5", 2, "'1.5' is not a whole number"),
    ("evaluate random --env CartPole-v1 --episodes 0", 2, "--episodes must be at least 1, not 0"),
    ("evaluate random --env CartPole-v1 --lanes 0", 2, "--lanes must be at least 1, not 0"),
    ("evaluate used --epsilon 2", 2, "--epsilon must be 0 ... 1, not 2"),
    ("video used --out a.avi", 2, "a.avi must end in .gif or .mp4"),
    ("video used --out file.txt/a.mp4", 2, "--out file.txt/a.mp4 cannot be written"),
    ("video used --speed 2000", 2, "--speed must be 0 ... 1000, not 2000"),
    ("record Pendulum-v1", 2, "only Discrete ones can be learned"),
    ("record CartPole-v1 --keys up", 2, "--keys up: write ACTION=KEY"),
    ("record CartPole-v1 --seed -1", 2, "--seed must be 0 ... 2^31 - 1, not -1"),
    ("record CartPole-v1 --name 'a b'", 2, "--name a b cannot name a set"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty demonstration folder, a text file, a folder with a run, and damaged files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    Path("file.txt").write_text("hello")
    Path("bad.npz").write_bytes(b"PK\x03\x04 and more")
    Path("bad.toml").write_text("a = [")
    Path("empty.toml").write_text("")
    Path("empty").mkdir()
    Path("sets").mkdir()  # the recorder makes it
    Path("used").mkdir()
    Path("used", "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(("line", "code", "message"), BAD_COMMANDS, ids=lambda v: str(v)[:70])
def test_bad_command_line_prints_one_line(
    line: str, code: int, message: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(os.listdir(folder))
    assert main(shlex.split(line)) == code
    err = capfd.readouterr().err
    assert err.startswith("lookfurther: ")
    assert err.count("\n") == 1, err
    assert message in err
    assert sorted(os.listdir(folder)) == before


def test_every_command_has_a_bad_command_line() -> None:
    words = [shlex.split(line) for line, _, _ in BAD_COMMANDS]
    assert {w[0] for w in words} >= COMMANDS.commands.keys()
    assert {w[1] for w in words if w[0] == "demos"} >= demos.COMMANDS.commands.keys()
