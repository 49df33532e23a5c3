"""Small recordings in the formats of other programs."""

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
OWN_ACTIONS = (0, 2, 3, 4, 5, 6, 7, 8, 9)  # the minimal actions of Asterix
NUM_FRAMES = 320
# Frame, address and value of RAM writes that change the game and so the rewards. A checkpoint has
# enough of it to repeat the change.
FIRST_WRITE, SECOND_WRITE = (50, 43, 90), (175, 21, 90)
REPEATED_WRITE = (290, 21, 90)  # the same byte before the next checkpoint, as with another ROM


def random_held_actions(frames: int = NUM_FRAMES, seed: int = 3) -> np.ndarray:
    """Random minimal actions, each held for six frames."""
    rng = np.random.default_rng(seed)
    return np.repeat(rng.integers(0, len(OWN_ACTIONS), frames // 6 + 1), 6)[:frames]


def old_emulator_state(ram: np.ndarray) -> np.ndarray:
    """An emulator state in the format of the old emulator, as far as an importer reads it."""
    values = np.array([128, *ram.tolist()], "<i4").tobytes()
    return np.frombuffer(b"\1\0\0\0\5\0\0\0M6532" + values + b"\0\0\0tail", np.uint8)


def asterix_recording(
    *writes: tuple[int, int, int], checkpoint_period: int = 100
) -> dict[str, Any]:
    """A recording of an emulator with these RAM writes."""
    actions = random_held_actions()
    input_log = InputLog(
        np.array(OWN_ACTIONS, np.uint8)[actions], np.array(writes, np.int32).reshape(-1, 3)
    )
    return record_playback(input_log, GAME, checkpoint_period) | {"actions": actions.tolist()}


def montezuma_recording() -> dict[str, Any]:
    """Montezuma's first room: a jump, pressed for one frame of a step, gets the key.

    RAM writes set up the room as in the shipped demonstration shortly before the key. With one
    action per step the player misses the key, so the set can be aligned.
    """
    (demo,) = shipped.read_demo("montezuma-revenge").episodes
    assert demo.input_log is not None
    begin, jump, ready = 4 * 205, 4 * 212, 4  # frames: of the episode, and of this recording
    emulator = Emulator(MONTEZUMA, 1)
    for _ in itertools.islice(play_log(demo.input_log, emulator), begin):
        pass
    writes = [(ready, address, value) for address, value in enumerate(emulator.ram().tolist())]
    frames = np.concatenate(
        [np.zeros(ready, np.uint8), demo.input_log.frame_actions[begin : jump + 24]]
    )
    frames[ready + jump - begin :] = [17] + 23 * [2]
    return record_playback(
        InputLog(frames, np.array(writes, np.int32)), MONTEZUMA, checkpoint_period=10
    )


def record_playback(input_log: InputLog, env: str, checkpoint_period: int) -> dict[str, Any]:
    """Play an input log and record it with checkpoints."""
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
    """Write a pickle like those of openai/atari-demo, which name NumPy's older modules."""
    text = pickle.dumps(data, protocol=3)
    path.write_bytes(text.replace(b"cnumpy._core.", b"cnumpy.core."))
    return path
