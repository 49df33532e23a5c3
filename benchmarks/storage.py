"""File formats for a long Atari episode: size, time to write and read, peak memory.

One episode of random play, by default 20,000 steps, with 7,056 bytes per plane. Each format runs in
its own process. `ours` is the format of `lookfurther demos`, with SHA-256 digests and checks.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import (
    BenchmarkProcess,
    format_missing,
    format_table,
    limit_cores,
    machine_info,
    make_parser,
    median_of_rounds,
    resident_bytes,
    write_report,
)
from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.episode import Episode
from lookfurther.types import Spec

DATASET_NAME = "bench/episode-v0"
PLANES_PER_CHUNK = 64  # in the compressed formats


class StorageFormat:
    """One file format."""

    def __init__(self, name: str, episode: Path, spec: Spec) -> None:
        kind, _, level = name.partition(" ")
        self.write, self.read = {
            "ours": (self._save, self._load),
            "minari": (self._minari_write, self._minari_read),
            "hdf5": (self._pack, self._minari_read),
        }[kind]
        self.level, self.spec = level, spec
        if level in ("arrow", "parquet"):
            import pyarrow  # noqa: F401
        arrays = np.load(episode)
        self.planes = np.ascontiguousarray(arrays["planes"])
        self.actions = arrays["actions"]

    def round(self) -> dict[str, float]:
        """Write and read the episode: MB, seconds, and MB of memory above the episode itself."""
        root = Path(tempfile.mkdtemp())
        try:
            write_s, write_peak = time_and_memory(lambda: self.write(root))
            size = sum(f.stat().st_size for f in root.rglob("*") if f.is_file())
            read_s, read_peak = time_and_memory(lambda: self.read(root))
            if not np.array_equal(self.read(root), self.planes):
                raise AssertionError("the planes read differ from those written")
        finally:
            shutil.rmtree(root)
        episode_mb = self.planes.nbytes / 1e6
        return {
            "size_mb": size / 1e6,
            "write_s": write_s,
            "read_s": read_s,
            "write_peak_mb": write_peak,
            "read_peak_mb": read_peak - episode_mb,
        }

    def _episode(self) -> Episode:
        rewards = np.zeros(len(self.actions), np.float32)
        return Episode(self.planes, self.actions, rewards, False, 0)

    def _save(self, root: Path) -> None:
        storage.save_episodes(
            DATASET_NAME, [self._episode()], self.spec, "a benchmark", root, EnvConfig()
        )

    def _load(self, root: Path) -> np.ndarray:
        return storage.load_episodes(DATASET_NAME, self.spec, root)[0].planes

    def _minari_write(self, root: Path) -> None:
        new_minari_storage(root, self.spec, self.level).update_episodes([self._buffer(self.planes)])

    def _minari_read(self, root: Path) -> np.ndarray:
        from minari.dataset.minari_storage import MinariStorage

        (episode,) = MinariStorage.read(root).get_episodes([0])
        return episode["observations"]

    def _pack(self, root: Path) -> None:
        """A Minari file with compressed planes."""
        import h5py

        made = new_minari_storage(root, self.spec, "hdf5")
        made.update_episodes([self._buffer(self.planes[:1])])
        filters = {"lzf": ("lzf", None)} | {f"gzip-{n}": ("gzip", n) for n in range(1, 10)}
        compression, level = filters[self.level]
        with h5py.File(root / "main_data.hdf5", "a") as file:
            del file["episode_0/observations"]
            file.create_dataset(
                "episode_0/observations",
                data=self.planes,
                chunks=(PLANES_PER_CHUNK, *self.planes.shape[1:]),
                compression=compression,
                compression_opts=level,
            )

    def _buffer(self, planes: np.ndarray) -> Any:
        from minari.data_collector import EpisodeBuffer

        steps = len(self.actions)
        none = np.zeros(steps, bool)
        make: Any = EpisodeBuffer  # its annotations are lists, but it takes arrays
        return make(0, 0, None, planes, self.actions, np.zeros(steps), none, none, {})


def new_minari_storage(root: Path, spec: Spec, form: str) -> Any:
    """A new Minari dataset."""
    from gymnasium import spaces
    from minari.dataset.minari_storage import MinariStorage

    box = spaces.Box(0, 255, spec.plane, np.uint8)
    actions = spaces.Discrete(spec.actions)
    return MinariStorage.new(root, box, actions, data_format=form, jpeg_encoding=False)


def time_and_memory(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and the peak memory in MB above the memory before."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident_bytes()
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    del result
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return seconds, (peak - before) / 1e6


def save_random_episode(game: str, steps: int, path: Path) -> Spec:
    """Save random play, consecutive episodes joined into one, for all candidates."""
    from lookfurther.envs import make_envs

    envs = make_envs(f"ALE/{game}-v5", EnvConfig(), 1, 0, 1)
    actions = np.random.default_rng(0).integers(0, 18, steps)
    planes = np.empty((steps + 1, *envs.spec.plane), np.uint8)
    planes[0] = envs.reset().observation[0, -1:]
    for t, action in enumerate(actions):
        envs.send(np.array([action]))
        planes[t + 1] = envs.recv().observation[0, -1:]
    envs.close()
    np.savez(path, planes=planes, actions=actions)
    return envs.spec


STORAGE_FORMATS = (
    *("ours", "minari hdf5", "minari arrow", "minari parquet"),
    *("hdf5 lzf", "hdf5 gzip-1", "hdf5 gzip-4", "hdf5 gzip-6"),
)
COLUMNS = ("size_mb", "write_s", "read_s", "write_peak_mb", "read_peak_mb")


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, seconds=0)
    parser.add_argument("--game", default="MontezumaRevenge")
    parser.add_argument("--steps", type=int, default=20_000)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    limit_cores(options.cores)
    result: dict[str, Any] = {"surroundings": machine_info(["minari", "h5py", "pyarrow", "numpy"])}
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        episode = Path(folder) / "episode.npz"
        spec = save_random_episode(options.game, options.steps, episode)
        for name in STORAGE_FORMATS:
            with closing(BenchmarkProcess(StorageFormat, name, episode, spec)) as process:
                if process.missing_reason:
                    figures[name] = {"absent": process.missing_reason}
                else:
                    figures[name] = median_of_rounds(
                        [process.call("round") for _ in range(options.rounds)]
                    )
    result |= {"game": options.game, "steps": options.steps, "ways": figures}
    rows = [[n, *(f[c] for c in COLUMNS)] for n, f in figures.items() if "absent" not in f]
    title = f"{options.steps:,} steps of {options.game}"
    write_report(
        title, result, format_table(["way", *COLUMNS], rows) + format_missing(figures), options.json
    )


if __name__ == "__main__":
    main()
