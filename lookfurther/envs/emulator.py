"""One Atari emulator, frame by frame, seen bit for bit as ale-py's vector environment shows it.

The vector environment cannot give its state, nor take RAM or one action for each frame: recording,
replaying and searching need an emulator that can.
"""

from __future__ import annotations

import hashlib
import math
import platform
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookfurther.envs.atari import SCREEN_SIZE
from lookfurther.envs.factory import find_env_spec
from lookfurther.errors import ConfigError

if TYPE_CHECKING:
    from ale_py import ALEInterface

# The names of the emulator's actions; the place of each is its id.
ACTION_MEANINGS = (
    *("NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN"),
    *("UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT"),
    *("UPFIRE", "RIGHTFIRE", "LEFTFIRE", "DOWNFIRE"),
    *("UPRIGHTFIRE", "UPLEFTFIRE", "DOWNRIGHTFIRE", "DOWNLEFTFIRE"),
)

# Where the processor multiplies and adds in one rounding, ale-py's OpenCV does: about one pixel in
# a hundred thousand, exactly between two grey values, falls to the other side.
FUSED_MULTIPLY_ADD = platform.machine().lower() in ("aarch64", "arm64")

STATE_HEADER = struct.Struct("<III")  # of a state: frames, phase, bytes of the picture under way


class GameVariant(NamedTuple):
    """Which of a cartridge's games is played; None is the one it starts with."""

    mode: int | None = None
    difficulty: int | None = None


DEFAULT_VARIANT = GameVariant()  # what the vector environment plays


class Emulator:
    """One Atari game with power on, frame by frame.

    A picture is the brighter of the last two frames of a step, pixel by pixel. A step that ends
    early, because the game is over, adds to the picture before it what it had come to show.
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
    ) -> None:
        self.game, self.action_repeat, self.phase, self.variant = (
            game_of(env),
            action_repeat,
            phase,
            variant,
        )
        self._ale = make_ale(sticky_prob, seed)
        self.reset()

    def reset(self) -> np.ndarray:
        """Switch the power off and on: the same start whatever was played before."""
        load_game(self._ale, self.game, self.variant)
        self.frame_number = 0
        self._pooled_frame = self._ale.getScreenGrayscale()
        self._previous_frame = np.zeros(
            0, np.uint8
        )  # the step's last frame but one, once it is there
        return self.current_plane()

    @property
    def is_over(self) -> bool:
        """Whether the game is: no frame follows."""
        return self._ale.game_over(with_truncation=False)

    @property
    def lives(self) -> int:
        return self._ale.lives()

    @property
    def minimal_actions(self) -> tuple[int, ...]:
        """The ids of the game's own actions, its minimal set."""
        return tuple(action.value for action in self._ale.getMinimalActionSet())

    @property
    def legal_actions(self) -> tuple[int, ...]:
        """The ids of the environment's actions, in its order: all 18 but where nothing fires."""
        return tuple(action.value for action in self._ale.getLegalActionSet())

    def step_frame(self, action: int) -> float:
        """One emulator frame under an action of 0 ... 17; the raw reward."""
        reward = self._ale.act(action)
        self.frame_number += 1
        left = (self.phase - self.frame_number) % self.action_repeat
        if left < 2 and not self.is_over:
            seen = self._ale.getScreenGrayscale()
            if left == 1:
                self._previous_frame = seen
            else:
                self._pooled_frame = (
                    np.maximum(seen, self._previous_frame) if self._previous_frame.size else seen
                )
                self._previous_frame = self._previous_frame[:0]
        return float(reward)

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """`repeat` frames under one action, or fewer where the game ends: plane, reward, over."""
        reward = 0.0
        for _ in range(self.action_repeat):
            reward += self.step_frame(action)
            if self.is_over:
                break
        return self.current_plane(), reward, self.is_over

    def current_plane(self, fused: bool = FUSED_MULTIPLY_ADD) -> np.ndarray:
        """What the vector environment would show if the step ended here, [1, 84, 84] uint8."""
        seen = (
            np.maximum(self._pooled_frame, self._previous_frame)
            if self._previous_frame.size
            else self._pooled_frame
        )
        return resize_by_area(seen, fused)[None]

    def rgb_screen(self) -> np.ndarray:
        """The last frame in colour, [210 (more in some games), 160, 3] uint8."""
        return self._ale.getScreenRGB()

    def ram(self) -> np.ndarray:
        """[128] uint8."""
        return self._ale.getRAM()

    def write_ram(self, address: int, value: int) -> None:
        """Set one byte of RAM."""
        self._ale.setRAM(address, value)

    def clone_state(self) -> bytes:
        """What decides what comes next, random numbers and pictures included.

        The action that sticky actions may repeat is missing: ale-py does not give it.
        """
        head = STATE_HEADER.pack(self.frame_number, self.phase, self._previous_frame.size)
        inner = self._ale.cloneState(include_rng=True).serialize()
        whole = b"".join(
            (head, self._pooled_frame.tobytes(), self._previous_frame.tobytes(), inner)
        )
        return zlib.compress(whole, 1)

    def restore_state(self, state: bytes) -> None:
        """Go on from a `state` of the same game; `screen` is right again after one frame.

        Q*bert and Tetris can only do so in the emulator that gave it (ale-py 0.12).
        """
        from ale_py import ALEState

        whole = zlib.decompress(state)
        self.frame_number, self.phase, begun = STATE_HEADER.unpack_from(whole)
        pictures = np.frombuffer(
            whole, np.uint8, self._pooled_frame.size + begun, STATE_HEADER.size
        )
        shape = self._pooled_frame.shape
        self._pooled_frame = pictures[: self._pooled_frame.size].reshape(shape)
        self._previous_frame = pictures[self._pooled_frame.size :].reshape(shape if begun else 0)
        self._ale.restoreState(ALEState(whole[STATE_HEADER.size + pictures.size :]))


def make_ale(sticky_prob: float = 0.0, seed: int = 0) -> ALEInterface:
    """ale-py's own emulator, without a game in it."""
    from ale_py import ALEInterface, LoggerMode  # an optional extra

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", sticky_prob)
    ale.setInt("random_seed", seed)
    return ale


def load_game(ale: ALEInterface, game: str, variant: GameVariant = DEFAULT_VARIANT) -> None:
    """Put a game in and begin: the same start whatever was played before."""
    ale.loadROM(rom_path(game))  # a mere reset_game keeps some games' RAM
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
    """A variant in which None stands for what a game starts with: its first mode, difficulty 0."""
    if mode is None and difficulty is None:
        return DEFAULT_VARIANT
    ale = make_ale()
    ale.loadROM(rom_path(game))
    first = ale.getAvailableModes()[0]
    return GameVariant(None if mode == first else mode, difficulty or None)


def game_of(env: str) -> str:
    """The ROM's name of an id such as ALE/MontezumaRevenge-v5."""
    spec = find_env_spec(env)
    if spec.namespace != "ALE":
        raise ConfigError(f"{env} is no Atari game: its id must be an ALE/...-v5 one")
    return spec.kwargs["game"]


def rom_path(game: str) -> Path:
    """Where ale-py keeps the ROM of a game."""
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
    """A grey screen as [84, 84], each pixel the mean of the area under it, as OpenCV rounds it.

    Sums are single precision, along the rows first; `fused` rounds once where a product is added.
    """
    kind = np.float64 if fused else np.float32  # holds the exact sum of a product and a term
    for axis in (1, 0):
        places, weights = _area_weights(grey.shape[axis])
        total = None
        for place, weight in zip(places, weights.astype(kind), strict=True):
            term = grey.take(place, axis) * (weight if axis == 1 else weight[:, None])
            total = (term if total is None else term + total).astype(np.float32, copy=False)
        assert total is not None
        grey = total
    return np.rint(grey).astype(np.uint8)


@lru_cache
def _area_weights(size: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of 84 pixels the places under it of `size` ones, and their shares, [n, 84] each."""
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
    places = np.array([[place for place, _ in parts] for parts in padded], np.intp)
    shares = np.array([[share for _, share in parts] for parts in padded], np.float32)
    return places.T.copy(), shares.T.copy()
