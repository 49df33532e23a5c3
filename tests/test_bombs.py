"""Small files that unpack to gigabytes or never end are errors and take little memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import bombs, minari_bombs

MAX_GROWTH = 100_000  # kB

EXPECTED_ERRORS = {
    "shared_lists": "a list is not an integer",
    "shared_tuples_as_key": "keys are not text",
    "shared_tuples_as_dtype": "its pickle calls dtype",
    "bytes_of_a_number": "values are not bytes",
    "deep_tuples": "more than 250000 objects",
    "many_dicts": "more than 250000 objects",
    "name_of_many_words": r"its pickle names a\.a a a",
    "many_checkpoints": "more than 5000 checkpoints",
    "large_checkpoint": "an emulator state of 8389129 bytes",
    "member_larger_than_it_says": "Bad CRC-32|magic",
    "member_packed_as_bzip2": r"rom\.npy has a compression",
    "sequence_of_days": "no actions, or more than 2097152",
    "millions_of_writes": "writes more than 200000 RAM bytes",
    "large_directory": "more than 1000 arrays",
    "fixed_strings": r"cannot be \|S1200000000",
    "millions_of_steps": "/episode_0/actions cannot be uint8",
    "one_episode_many_times": "claims more bytes than its files can hold",
    "parquet_of_one_large_value": "needs more than",
    "parquet_of_many_rows": "more than 1000000 steps",
    "arrow_of_one_large_value": "needs more than",
    "frameskip": r"frameskip must be 1 \.\.\. 100, not 400000000",
    "frame_skip_of_a_wrapper": r"frame_skip must be 1 \.\.\. 100, not 400000000",
    "many_values": "more than 500000 values",
    "large_metadata": "larger than 8388608 bytes",
    "deep_values": "nested too deeply|more than",
    "endless_metadata": "holds no Minari dataset",
}


class ReaderReport(NamedTuple):
    """The error of a reader for a file, and its memory beyond that for sound files."""

    error: str
    growth: int  # kB
    sandbox_growth: int  # kB


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReaderReport]:
    folder = tmp_path_factory.mktemp("bombs")
    (folder / "sound").mkdir()
    sound, files = bombs.write_sound_files(folder / "sound"), bombs.write_bombs(folder)
    listed = {"sound": [*map(str, sound)], "bombs": {name: str(p) for name, p in files.items()}}
    (folder / "files.json").write_text(json.dumps(listed))
    command = [sys.executable, "-m", "tests.bombs", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(lines) > len(sound), run.stderr
    baseline = lines[len(sound) - 1][2:]
    return {
        name: ReaderReport(
            error, *(peak - start for peak, start in zip(memory, baseline, strict=True))
        )
        for name, error, *memory in lines[len(sound) :]
    }


@pytest.mark.parametrize("name", [*bombs.PICKLES, *bombs.ARCHIVES, *minari_bombs.DATASETS])
def test_bomb_is_an_error_with_little_memory(reports: dict[str, ReaderReport], name: str) -> None:
    if name in minari_bombs.PYARROW_BOMBS:
        pytest.importorskip("pyarrow")
    assert name in reports, "the reader hung or its process died"
    report = reports[name]
    assert re.search(EXPECTED_ERRORS[name], report.error), report.error
    assert "\n" not in report.error
    assert report.growth < MAX_GROWTH
    assert report.sandbox_growth < MAX_GROWTH
