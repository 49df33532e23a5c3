"""One Atari emulator stepped by frames, with the observations of ale-py's vector environment.

The vector environment can neither save its state, nor write RAM, nor take one action per frame.
Recording, replaying and searching need all three.
"""

from __future__ import annotations

import hashlib
import math
import platform
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookfurther.envs.atari import SCREEN_SIZE
from lookfurther.envs.clock import NO_CLOCK, ClockDisplay, draw_clock
from lookfurther.envs.factory import find_game
from lookfurther.errors import ConfigError

if TYPE_CHECKING:
    from ale_py import ALEInterface

# The names of the emulator's actions, in the order of their ids.
ACTION_MEANINGS = (
    *("NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN"),
    *("UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT"),
    *("UPFIRE", "RIGHTFIRE", "LEFTFIRE", "DOWNFIRE"),
    *("UPRIGHTFIRE", "UPLEFTFIRE", "DOWNRIGHTFIRE", "DOWNLEFTFIRE"),
)

# ale-py's OpenCV uses fused multiply-add where the processor has it. About one pixel in a hundred
# thousand is exactly between two grey values and is then rounded the other way.
FUSED_MULTIPLY_ADD = platform.machine().lower() in ("aarch64", "arm64")

STATE_HEADER = struct.Struct("<III")  # frame number, phase, bytes of the previous frame


class GameVariant(NamedTuple):
    """Mode and difficulty of a game; None is the one it starts with."""

    mode: int | None = None
    difficulty: int | None = None


DEFAULT_VARIANT = GameVariant()  # what the vector environment plays


class Emulator:
    """One Atari game from power-on, stepped by frames.

    An observation is the pixelwise maximum of the last two frames of a step. A step that ends
    early, because the game is over, is pooled with the observation before it.
    With a `phase` the first step after power-on is shorter: it has that many frames.
    """

    def __init__(
        self,
        env: str,
        action_repeat: int = 4,
        sticky_prob: float = 0.0,
        seed: int = 0,
        phase: int = 0,
        variant: GameVariant = DEFAULT_VARIANT,
        clock: ClockDisplay = NO_CLOCK,
    ) -> None:
        self.game, self.variant = find_game(env), variant
        self.action_repeat, self.phase = action_repeat, phase
        self.clock = clock
        self._ale = make_ale(sticky_prob, seed)
        self.reset()

    def reset(self) -> np.ndarray:
        """Switch the power off and on: the start does not depend on what was played before."""
        load_game(self._ale, self.game, self.variant)
        self.frame_number = 0
        self._pooled_frame = self._ale.getScreenGrayscale()
        self._previous_frame = np.zeros(0, np.uint8)  # the step's last frame but one, or empty
        return self.current_plane()

    @property
    def is_over(self) -> bool:
        """Whether the game has ended."""
        return self._ale.game_over(with_truncation=False)

    @property
    def lives(self) -> int:
        return self._ale.lives()

    @property
    def frames_to_step_end(self) -> int:
        """Frames that are left of the step, or those of the next one at the end of a step."""
        return (self.phase - self.frame_number) % self.action_repeat or self.action_repeat

    @property
    def minimal_actions(self) -> tuple[int, ...]:
        """The action ids of the game's minimal set."""
        return tuple(action.value for action in self._ale.getMinimalActionSet())

    @property
    def legal_actions(self) -> tuple[int, ...]:
        """The action ids of the environment, in its order: all 18, fewer in games without fire."""
        return tuple(action.value for action in self._ale.getLegalActionSet())

    def step_frame(self, action: int) -> float:
        """Play one emulator frame with an action of 0 ... 17; return the raw reward."""
        reward = self._ale.act(action)
        self.frame_number += 1
        frames_left = (self.phase - self.frame_number) % self.action_repeat
        if frames_left < 2 and not self.is_over:
            frame = self._ale.getScreenGrayscale()
            if frames_left == 1:
                self._previous_frame = frame
            else:
                self._pooled_frame = self._max_pool(frame)
                self._previous_frame = self._previous_frame[:0]
        return float(reward)

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Play to the end of the step or of the game; return plane, reward, is_over.

        A step has `action_repeat` frames. It is shorter if the first of them are already played,
        or if it is the first one of a game with a phase.
        """
        reward = sum(self.play_frames([action] * self.frames_to_step_end))
        return self.current_plane(), reward, self.is_over

    def play_frames(
        self, actions: Sequence[int], ram_writes: Sequence[Sequence[int]] = ()
    ) -> Iterator[float]:
        """Play frames up to the end of the game and yield the reward of each.

        A RAM write (frame, address, value) is made just before its frame; they are in order.
        """
        writes = deque(ram_writes)
        for frame, action in enumerate(actions):
            while writes and writes[0][0] == frame:
                self.write_ram(*writes.popleft()[1:])
            yield self.step_frame(action)
            if self.is_over:
                return

    def current_plane(self, fused: bool = FUSED_MULTIPLY_ADD) -> np.ndarray:
        """What the vector environment would return if the step ended here, [1, 84, 84] uint8."""
        plane = resize_by_area(self._max_pool(self._pooled_frame), fused)[None]
        draw_clock(plane, self.frame_number, self.clock)
        return plane

    def rgb_screen(self) -> np.ndarray:
        """The last frame in colour, [height, 160, 3] uint8; the height is 210 in most games."""
        return self._ale.getScreenRGB()

    def ram(self) -> np.ndarray:
        """[128] uint8."""
        return self._ale.getRAM()

    def write_ram(self, address: int, value: int) -> None:
        """Set one byte of RAM."""
        self._ale.setRAM(address, value)

    def clone_state(self) -> bytes:
        """Everything that determines the rest of the game, with random state and pooled frames.

        The action that sticky actions may repeat is missing: ale-py does not expose it.
        """
        header = STATE_HEADER.pack(self.frame_number, self.phase, self._previous_frame.size)
        ale_state = self._ale.cloneState(include_rng=True).serialize()
        frames = self._pooled_frame.tobytes() + self._previous_frame.tobytes()
        return zlib.compress(header + frames + ale_state, 1)

    def restore_state(self, state: bytes) -> None:
        """Continue from a cloned state of the same game; `rgb_screen` is right after one frame.

        Q*bert and Tetris can only restore a state in the emulator that cloned it (ale-py 0.12).
        """
        from ale_py import ALEState

        data = zlib.decompress(state)
        self.frame_number, self.phase, previous_size = STATE_HEADER.unpack_from(data)
        size, shape = self._pooled_frame.size, self._pooled_frame.shape
        frames = np.frombuffer(data, np.uint8, size + previous_size, STATE_HEADER.size)
        self._pooled_frame = frames[:size].reshape(shape)
        self._previous_frame = frames[size:].reshape(shape if previous_size else 0)
        self._ale.restoreState(ALEState(data[STATE_HEADER.size + frames.size :]))

    def _max_pool(self, frame: np.ndarray) -> np.ndarray:
        """The pixelwise maximum of `frame` and the step's previous frame, if there is one."""
        return np.maximum(frame, self._previous_frame) if self._previous_frame.size else frame


def make_ale(sticky_prob: float = 0.0, seed: int = 0) -> ALEInterface:
    """ale-py's emulator without a game."""
    from ale_py import ALEInterface, LoggerMode  # an optional extra

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", sticky_prob)
    ale.setInt("random_seed", seed)
    return ale


def load_game(ale: ALEInterface, game: str, variant: GameVariant = DEFAULT_VARIANT) -> None:
    """Load a game and begin: the start does not depend on what was played before."""
    ale.loadROM(rom_path(game))  # reset_game alone keeps the RAM of some games
    mode, difficulty = variant
    if mode is not None:
        _check_choice(game, "mode", mode, ale.getAvailableModes())
        ale.setMode(mode)
    if difficulty is not None:
        _check_choice(game, "difficulty", difficulty, ale.getAvailableDifficulties())
        ale.setDifficulty(difficulty)
    ale.reset_game()


def _check_choice(game: str, name: str, value: int, choices: Sequence[int]) -> None:
    if value not in choices:
        known = ", ".join(map(str, choices))
        raise ConfigError(f"{game} has no {name} {value}: it has {known}")


def normalise_variant(game: str, mode: int | None, difficulty: int | None) -> GameVariant:
    """A variant with None for the values a game starts with: its first mode, difficulty 0."""
    if mode is None and difficulty is None:
        return DEFAULT_VARIANT
    ale = make_ale()
    ale.loadROM(rom_path(game))
    first = ale.getAvailableModes()[0]
    return GameVariant(None if mode == first else mode, difficulty or None)


def rom_path(game: str) -> Path:
    """The path of a game's ROM in ale-py."""
    from ale_py import roms

    path = roms.get_rom_path(game) if game in roms.get_all_rom_ids() else None
    if path is None:
        raise ConfigError(f"ale-py has no game {game!r}")
    return path


@lru_cache
def rom_digest(game: str) -> str:
    """SHA-256 of the ROM."""
    return hashlib.sha256(rom_path(game).read_bytes()).hexdigest()


def resize_by_area(grey: np.ndarray, fused: bool = FUSED_MULTIPLY_ADD) -> np.ndarray:
    """Resize a greyscale screen to [84, 84] by area averaging, with OpenCV's rounding.

    Sums are in single precision, along rows first; `fused` rounds a product and its sum once.
    """
    dtype = np.float64 if fused else np.float32  # float64 holds a product plus a term exactly
    for axis in (1, 0):
        indices, weights = _area_weights(grey.shape[axis])
        total = None
        for index, weight in zip(indices, weights.astype(dtype), strict=True):
            term = grey.take(index, axis) * (weight if axis == 1 else weight[:, None])
            total = (term if total is None else term + total).astype(np.float32, copy=False)
        assert total is not None
        grey = total
    return np.rint(grey).astype(np.uint8)


@lru_cache
def _area_weights(size: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of 84 output pixels, the input pixels it covers and their weights: [n, 84] each."""
    scale = size / SCREEN_SIZE
    columns = []
    for i in range(SCREEN_SIZE):
        low, high = i * scale, (i + 1) * scale
        inside = range(math.ceil(low), min(math.floor(high), size - 1))
        parts = [(j, 1 / scale) for j in inside]
        if inside.start - low > 1e-3:
            parts.insert(0, (inside.start - 1, (inside.start - low) / scale))
        if high - inside.stop > 1e-3:
            parts.append((inside.stop, (high - inside.stop) / scale))
        columns.append(parts)
    n = max(map(len, columns))
    padded = [parts + [(0, 0.0)] * (n - len(parts)) for parts in columns]
    indices = np.array([[index for index, _ in parts] for parts in padded], np.intp)
    weights = np.array([[weight for _, weight in parts] for parts in padded], np.float32)
    return indices.T.copy(), weights.T.copy()
