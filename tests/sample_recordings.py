"""Small recordings of the formats that others use, made here."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from lookfurther.demos import shipped
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import play_log
from lookfurther.envs.emulator import Emulator

GAME, MONTEZUMA = "ALE/Asterix-v5", "ALE/MontezumaRevenge-v5"
OWN_ACTIONS = (0, 2, 3, 4, 5, 6, 7, 8, 9)  # its own actions
NUM_FRAMES = 320
# Frame, address and value of RAM writes that change what is met, and so the rewards; what a
# checkpoint holds of that is enough to bring it about again.
FIRST_WRITE, SECOND_WRITE = (50, 43, 90), (175, 21, 90)
REPEATED_WRITE = (
    290,
    21,
    90,
)  # the same byte before the next checkpoint, as another ROM would change it


def random_held_actions(frames: int = NUM_FRAMES, seed: int = 3) -> np.ndarray:
    """Actions of the game's own, each held for a while."""
    rng = np.random.default_rng(seed)
    return np.repeat(rng.integers(0, len(OWN_ACTIONS), frames // 6 + 1), 6)[:frames]


def old_emulator_state(ram: np.ndarray) -> np.ndarray:
    """An emulator state as the old emulator wrote it, as far as anyone reads it."""
    values = np.array([128, *ram.tolist()], "<i4").tobytes()
    return np.frombuffer(b"\1\0\0\0\5\0\0\0M6532" + values + b"\0\0\0tail", np.uint8)


def asterix_recording(
    *writes: tuple[int, int, int], checkpoint_period: int = 100
) -> dict[str, Any]:
    """What an emulator whose RAM is written to so would have recorded."""
    chosen = random_held_actions()
    tape = InputLog(
        np.array(OWN_ACTIONS, np.uint8)[chosen], np.array(writes, np.int32).reshape(-1, 3)
    )
    return record_playback(tape, GAME, checkpoint_period) | {"actions": chosen.tolist()}


def montezuma_recording() -> dict[str, Any]:
    """The key of Montezuma's first room, by a jump that is pressed for one frame of its step.

    The room is set up by RAM, as the shipped demonstration has it shortly before. Its steps, one
    action each, miss the key: the set can be aligned.
    """
    (shown,) = shipped.demo_episodes("montezuma-revenge")
    assert shown.input_log is not None
    begin, jump, ready = 4 * 205, 4 * 212, 4  # frames: of the episode, and of this recording
    emulator = Emulator(MONTEZUMA, 1)
    for _ in itertools.islice(play_log(shown.input_log, emulator), begin):
        pass
    writes = [(ready, address, value) for address, value in enumerate(emulator.ram().tolist())]
    frames = np.concatenate(
        [np.zeros(ready, np.uint8), shown.input_log.frame_actions[begin : jump + 24]]
    )
    frames[ready + jump - begin :] = [17] + 23 * [2]
    return record_playback(
        InputLog(frames, np.array(writes, np.int32)), MONTEZUMA, checkpoint_period=10
    )


def record_playback(input_log: InputLog, env: str, checkpoint_period: int) -> dict[str, Any]:
    """A play with checkpoints, its actions as ids."""
    emulator = Emulator(env, 1)
    rewards, lives, states, places = [], [emulator.lives], [], []
    for reward in play_log(input_log, emulator):
        rewards.append(reward)
        lives.append(emulator.lives)
        if emulator.frame_number % checkpoint_period == 0:
            states.append(old_emulator_state(emulator.ram()))
            places.append(emulator.frame_number)
    return {
        "actions": input_log.frame_actions.tolist(),
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
