"""Any file that can be imported: its kind, own sets and the shared recordings."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from lookfurther.config import EnvConfig
from lookfurther.demos.collect import collect_episodes
from lookfurther.demos.importers import action_sequence, import_demos
from lookfurther.demos.storage import save_episodes
from lookfurther.errors import DemonstrationError

pytest.importorskip("ale_py")


SHARED_DEMOS = Path(__file__).parents[2] / "shared" / "demos"


def test_unknown_file_type_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("up, up, down")
    with pytest.raises(
        DemonstrationError, match=r"must be a \.demo, \.npz, \.hdf5 file or the folder"
    ):
        import_demos(tmp_path / "notes.txt")
    with pytest.raises(DemonstrationError, match="there is no file"):
        import_demos(tmp_path / "nothing.npz")
    with pytest.raises(DemonstrationError, match="holds no Minari dataset"):
        import_demos(tmp_path)


def test_own_set_is_replayed_on_import(tmp_path: Path) -> None:
    def balance(env: Any) -> Callable[[], int]:
        return lambda: int(env.unwrapped.state[2] > 0)

    episodes, spec = collect_episodes("CartPole-v1", EnvConfig(), balance, range(2))
    path = save_episodes("mine-v0", episodes, spec, "me", tmp_path)
    imported = import_demos(path)
    assert [e.audit.verified for e in imported.episodes if e.audit] == [True, True]
    changed = [e.__class__(**{**e.__dict__, "seed": 9}) for e in episodes]
    path = save_episodes("other-v0", changed, spec, "me", tmp_path)
    with pytest.raises(DemonstrationError, match="episode 0: step 0: 4 of 4 values of the plane"):
        import_demos(path)
    assert len(import_demos(path, force=True).episodes) == 2


# Shared recordings, if present

RECORDED_SCORES = {
    "MontezumaRevenge.demo": 71_500,
    "MontezumaRevenge1.demo": 10_100,
    "PrivateEye.demo": 100_400,
    "Pitfall.demo": 48_990,
    "Gravitar.demo": 16_000,
    "Pong.demo": 5,
}


def import_recording(path: Path) -> tuple[str, float, bool, int]:
    """Import one file and return its name, score, whether it is verified, and steps."""
    episode = import_demos(path).episodes[0]
    assert episode.audit is not None
    return path.name, episode.score, episode.audit.verified, len(episode)


@pytest.mark.slow
def test_shared_recordings_reach_their_scores() -> None:
    """All .demo files, and the shortest action sequence of each game."""
    if not SHARED_DEMOS.is_dir():
        pytest.skip(f"no recordings at {SHARED_DEMOS}")
    claims = dict(RECORDED_SCORES)
    shortest: dict[str, tuple[int, Path]] = {}
    for path in sorted((SHARED_DEMOS / "episodes").glob("*.npz")):
        arrays = action_sequence.load_arrays(path)
        claims[path.name] = int(arrays["score"])
        candidate = (len(arrays["ale_actions"]), path)
        game = str(arrays["rom"])
        shortest[game] = min(shortest.get(game, candidate), candidate)
    assert len(claims) == 100
    files = [SHARED_DEMOS / name for name in RECORDED_SCORES] + [
        path for _, path in shortest.values()
    ]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for name, score, verified, steps in pool.map(import_recording, files):
            assert (score, verified) == (claims[name], True), name
            assert steps > 100
