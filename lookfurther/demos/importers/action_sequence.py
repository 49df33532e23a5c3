"""Action sequences: NumPy .npz files with the action of every emulator frame of an Atari episode.

    rom          name of the ROM, such as "montezuma_revenge"
    ale_actions  [F] integers: ALE action id 0 ... 17 of every emulator frame from power-on
    score        sum of the rewards
    ram_patch    [n, 2]: address and value of RAM bytes to write (optional) ...
    patch_frame  ... just before this frame
    ram_writes   [n, 3]: frame, address and value of RAM bytes to write just before that frame
                 (optional, for writes at several frames)
    rewards      [F], per frame (optional)
    phase        frames of the first step if it is shorter than the others (optional)

There are no sticky actions, and no no-ops except those listed.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import ATARI_ACTIONS, Episode, InputLog
from lookfurther.demos.importers.audit import RecordedOutcome, audit_input_logs
from lookfurther.demos.importers.imported import ImportedDemos
from lookfurther.demos.playback import make_emulator, play_log, with_best_phase
from lookfurther.demos.sandbox import file_size
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import DEFAULT_VARIANT
from lookfurther.envs.factory import find_game
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError
from lookfurther.system.files import atomic_replace

MAX_FILE_BYTES = 2**24
MAX_UNPACKED_BYTES = 2**25
MAX_FRAMES = 2**21  # nine hours of play
MAX_RAM_WRITES = 200_000
MAX_ZIP_ENTRIES = 1000  # zipfile reads the whole directory at once
REQUIRED_ARRAYS = ("rom", "ale_actions", "score")
KNOWN_ARRAYS = (*REQUIRED_ARRAYS, "ram_patch", "patch_frame", "ram_writes", "rewards", "phase")


def read_action_sequence(path: Path, env: str, env_config: EnvConfig, force: bool) -> ImportedDemos:
    """Read the one episode of an action sequence."""
    try:
        game, log, outcome = _parse_sequence(load_arrays(path), env_config.action_repeat)
        env = env or _env_from_rom(game)
    except DemonstrationError as error:
        raise DemonstrationError(f"{path}: {error}") from None
    except Exception as error:  # a truncated, altered or hostile file may raise anything
        reason = " ".join(f"{error}"[:200].split())
        raise DemonstrationError(f"{path} is not a readable action sequence: {reason}") from error
    if find_game(env) != game:
        raise DemonstrationError(f"{path} is of {game}, not of {env}")
    episode = audit_input_logs(str(path), [log], env, env_config, outcome, force)
    return ImportedDemos([episode], get_spec(env, env_config), env_config)


def write_action_sequence(path: Path, episode: Episode, env: str) -> None:
    """Write an Atari episode as an action sequence."""
    log = episode.input_log
    if log is None:
        raise DemonstrationError("only an Atari episode can be written as an action sequence")
    if log.variant != DEFAULT_VARIANT:
        raise DemonstrationError("an action sequence cannot store a mode or difficulty of the game")
    rewards = np.array(list(play_log(log, make_emulator(log, env, 1))))
    if rewards.sum() != episode.score:
        raise DemonstrationError(
            f"{path} is not written: the actions give {rewards.sum():g}, not {episode.score:g}"
        )
    with atomic_replace(path) as draft, draft.open("wb") as file:
        np.savez_compressed(
            file,
            rom=np.array(find_game(env)),
            ale_actions=log.frame_actions,
            ram_writes=log.ram_writes,
            score=np.array(episode.score),
            rewards=rewards,
            phase=np.array(log.phase),
        )


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Load the arrays of a .npz file; raise if a name is unknown or an array too large."""
    if file_size(path) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
    file = path.read_bytes()
    if file.count(b"PK\1\2") > MAX_ZIP_ENTRIES:
        raise ValueError(f"it holds more than {MAX_ZIP_ENTRIES} arrays")
    with zipfile.ZipFile(io.BytesIO(file)) as packed:
        members = {info.filename: info for info in packed.infolist()}
        if unknown := set(members) - {f"{name}.npy" for name in KNOWN_ARRAYS}:
            raise ValueError(f"it holds the unknown array {min(unknown)!r:.60}")
        if missing := [name for name in REQUIRED_ARRAYS if f"{name}.npy" not in members]:
            raise ValueError(f"it holds no {missing[0]}")
        if sum(info.file_size for info in members.values()) > MAX_UNPACKED_BYTES:
            raise ValueError(f"it holds more than {MAX_UNPACKED_BYTES} bytes")
        return {name[:-4]: _parse_npy(_read_member(packed, info)) for name, info in members.items()}


def _read_member(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Read a zip member, at most as many bytes as its header claims."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename} has a compression that NumPy does not use")
    with packed.open(info) as member:
        return member.read(info.file_size)


def _parse_npy(data: bytes) -> np.ndarray:
    """Parse a .npy file of numbers or text; raise if it holds pickled objects."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"an array of .npy version {version}")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "biufU" or fortran:
        raise ValueError(f"an array of {dtype}")
    array = np.frombuffer(data, dtype, offset=file.tell())
    if len(shape) > 2 or array.size != np.prod(shape, dtype=object):
        raise ValueError(f"{array.size} values for the shape {shape}")
    return array.reshape(shape)


def _parse_sequence(
    arrays: dict[str, np.ndarray], action_repeat: int
) -> tuple[str, InputLog, RecordedOutcome]:
    frames = arrays["ale_actions"]
    if not 0 < frames.size <= MAX_FRAMES:
        raise ValueError(f"it holds no actions, or more than {MAX_FRAMES}")
    if max(len(arrays.get(name, ())) for name in ("ram_writes", "ram_patch")) > MAX_RAM_WRITES:
        raise ValueError(f"it writes more than {MAX_RAM_WRITES} RAM bytes")
    if "ram_writes" in arrays:
        writes = arrays["ram_writes"]
    else:
        patch = arrays.get("ram_patch", np.zeros((0, 2), np.uint8))
        patch_frame = _get_scalar(arrays, "patch_frame") if len(patch) else 0
        writes = np.insert(patch.astype(np.int32), 0, patch_frame, axis=1)
    if writes.dtype.kind not in "iu" or frames.dtype.kind not in "iu":
        raise ValueError("its actions or RAM writes are not integers")
    if ((frames < 0) | (frames >= ATARI_ACTIONS)).any():
        raise ValueError(f"its actions must be 0 ... {ATARI_ACTIONS - 1}")
    rewards = arrays.get("rewards")
    if rewards is not None:
        if rewards.shape != frames.shape or not np.isfinite(rewards).all():
            raise ValueError(f"rewards of shape {rewards.shape} for {frames.size} actions")
        rewards = rewards.astype(np.float64)
    score = float(_get_scalar(arrays, "score"))
    log = InputLog(frames.astype(np.uint8), writes.astype(np.int32))
    if "phase" in arrays:
        log = replace(log, phase=int(_get_scalar(arrays, "phase")) % action_repeat)
    else:
        log = with_best_phase(log, action_repeat)
    return str(_get_scalar(arrays, "rom"))[:100], log, RecordedOutcome(score, rewards, {})


def _get_scalar(arrays: dict[str, np.ndarray], name: str) -> Any:
    if arrays[name].shape != ():
        raise ValueError(f"{name} must be one value")
    return arrays[name][()]


def _env_from_rom(game: str) -> str:
    """Return the environment id of a ROM name."""
    import gymnasium

    from lookfurther.envs.factory import find_env_spec

    find_env_spec("ALE/Pong-v5")  # registers all games
    for env, spec in gymnasium.registry.items():
        if is_atari(spec.id) and spec.kwargs.get("game") == game:
            return env
    raise DemonstrationError(f"ale-py has no game {game!r}")
