"""Small recordings of the formats that others use, made here."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from lookfurther.demos.episodes import Tape
from lookfurther.demos.tapes import play
from lookfurther.envs.emulator import Emulator

GAME = "ALE/Asterix-v5"
OWN = (0, 2, 3, 4, 5, 6, 7, 8, 9)  # its own actions
FRAMES = 320
# Frame, address and value of RAM writes that change what is met, and so the rewards; what a
# checkpoint holds of that is enough to bring it about again.
ONE, TWO = (50, 43, 90), (175, 21, 90)


def indices(frames: int = FRAMES, seed: int = 3) -> np.ndarray:
    """Actions of the game's own, each held for a while."""
    rng = np.random.default_rng(seed)
    return np.repeat(rng.integers(0, len(OWN), frames // 6 + 1), 6)[:frames]


def checkpoint(ram: np.ndarray) -> np.ndarray:
    """An emulator state as the old emulator wrote it, as far as anyone reads it."""
    values = np.array([128, *ram.tolist()], "<i4").tobytes()
    return np.frombuffer(b"\1\0\0\0\5\0\0\0M6532" + values + b"\0\0\0tail", np.uint8)


def recording(*writes: tuple[int, int, int], every: int = 100) -> dict[str, Any]:
    """What an emulator whose RAM is written to so would have recorded."""
    emulator = Emulator(GAME, 1)
    chosen = indices()
    tape = Tape(np.array(OWN, np.uint8)[chosen], np.array(writes, np.int32).reshape(-1, 3))
    rewards, lives, states, places = [], [emulator.lives], [], []
    for reward in play(tape, emulator):
        rewards.append(reward)
        lives.append(emulator.lives)
        if emulator.frames % every == 0:
            states.append(checkpoint(emulator.ram()))
            places.append(emulator.frames)
    return {
        "actions": chosen.tolist(),
        "rewards": rewards,
        "signed_rewards": [np.float64(np.sign(r)) for r in rewards],
        "lives": lives,
        "checkpoints": states,
        "checkpoint_action_nr": places,
    }


def write_demo(path: Path, data: Any) -> Path:
    """A pickle as openai/atari-demo has them, which name NumPy's older modules."""
    text = pickle.dumps(data, protocol=3)
    path.write_bytes(text.replace(b"cnumpy._core.", b"cnumpy.core."))
    return path
