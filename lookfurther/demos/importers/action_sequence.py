"""Plain action sequences: a NumPy .npz file that anyone can write.

    rom          the ROM's name, such as "montezuma_revenge"
    ale_actions  [F] whole numbers: the action id 0 ... 17 of every emulator frame, from power-on
    score        the score they reach
    ram_patch    [n, 2]: address and value of RAM bytes to write (optional) ...
    patch_frame  ... just before the frame of this number
    ram_writes   [n, 3]: frame, address and value of RAM bytes to write just before that frame
                 (optional, for writes at several frames)
    rewards      [F], per frame (optional)
    phase        frames of the first step, where that is shorter than the others (optional)

No sticky actions, no no-ops beyond those listed.
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
from lookfurther.demos.importers import ImportedDemos
from lookfurther.demos.importers.audit import RecordedOutcome, audit_input_logs
from lookfurther.demos.playback import make_emulator, play_log, with_best_phase
from lookfurther.demos.sandbox import file_size
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import DEFAULT_VARIANT
from lookfurther.envs.factory import find_game
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError
from lookfurther.system.files import atomic_replace

MAX_FILE_BYTES, MAX_UNPACKED_BYTES = (
    2**24,
    2**25,
)  # bytes of a file, and of all that is packed in it
MAX_FRAMES = 2**21  # nine hours of play
MAX_RAM_WRITES = 200_000  # of RAM bytes
MAX_ZIP_ENTRIES = 1000  # in a file's directory, which is read at once
REQUIRED_ARRAYS = ("rom", "ale_actions", "score")
KNOWN_ARRAYS = (*REQUIRED_ARRAYS, "ram_patch", "patch_frame", "ram_writes", "rewards", "phase")


def read_action_sequence(path: Path, env: str, env_config: EnvConfig, force: bool) -> ImportedDemos:
    """The one episode of an action sequence."""
    try:
        game, tape, claim = _parse_sequence(load_arrays(path), env_config.action_repeat)
        env = env or _env_from_rom(game)
    except DemonstrationError as error:
        raise DemonstrationError(f"{path}: {error}") from None
    except Exception as error:  # whatever a cut, altered or hostile file leads to
        reason = " ".join(f"{error}"[:200].split())
        raise DemonstrationError(f"{path} is no readable action sequence: {reason}") from error
    if find_game(env) != game:
        raise DemonstrationError(f"{path} is of {game}, not of {env}")
    episode = audit_input_logs(str(path), [tape], env, env_config, claim, force)
    return ImportedDemos([episode], get_spec(env, env_config), env_config)


def write_action_sequence(path: Path, episode: Episode, env: str) -> None:
    """An episode of an emulator as an action sequence."""
    if episode.input_log is None:
        raise DemonstrationError("only an episode of an Atari game is an action sequence")
    tape = episode.input_log
    if tape.variant != DEFAULT_VARIANT:
        raise DemonstrationError("an action sequence cannot say a mode or difficulty of the game")
    rewards = np.array(list(play_log(tape, make_emulator(tape, env, 1))))
    if rewards.sum() != episode.score:
        raise DemonstrationError(
            f"{path} is not written: the actions give {rewards.sum():g}, not {episode.score:g}"
        )
    with atomic_replace(path) as draft, draft.open("wb") as file:
        np.savez_compressed(
            file,
            rom=np.array(find_game(env)),
            ale_actions=tape.frame_actions,
            ram_writes=tape.ram_writes,
            score=np.array(episode.score),
            rewards=rewards,
            phase=np.array(tape.phase),
        )


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file, each known by name and no larger than it can be."""
    if file_size(path) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
    file = path.read_bytes()
    if file.count(b"PK\1\2") > MAX_ZIP_ENTRIES:
        raise ValueError(f"it holds more than {MAX_ZIP_ENTRIES} arrays")
    with zipfile.ZipFile(io.BytesIO(file)) as packed:
        members = {info.filename: info for info in packed.infolist()}
        if strange := set(members) - {f"{name}.npy" for name in KNOWN_ARRAYS}:
            raise ValueError(f"it holds {min(strange)!r:.60}")
        if missing := [name for name in REQUIRED_ARRAYS if f"{name}.npy" not in members]:
            raise ValueError(f"it holds no {missing[0]}")
        if sum(info.file_size for info in members.values()) > MAX_UNPACKED_BYTES:
            raise ValueError(f"it holds more than {MAX_UNPACKED_BYTES} bytes")
        return {name[:-4]: _parse_npy(_read_member(packed, info)) for name, info in members.items()}


def _read_member(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member; what it says of their number is a limit, not a fact."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename} is packed in another way than NumPy's")
    with packed.open(info) as member:
        return member.read(info.file_size)


def _parse_npy(data: bytes) -> np.ndarray:
    """An array of numbers or text from the bytes of a .npy file, without its pickles."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"an array of .npy version {version}")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "biufU" or fortran:
        raise ValueError(f"an array of {dtype}")
    array = np.frombuffer(data, dtype, offset=file.tell())
    if len(shape) > 2 or array.size != np.prod(shape, dtype=object):
        raise ValueError(f"{array.size} numbers for the shape {shape}")
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
        place = _get_scalar(arrays, "patch_frame") if len(patch) else 0
        writes = np.insert(patch.astype(np.int32), 0, place, axis=1)
    if writes.dtype.kind not in "iu" or frames.dtype.kind not in "iu":
        raise ValueError("its actions or RAM writes are not whole numbers")
    if ((frames < 0) | (frames >= ATARI_ACTIONS)).any():
        raise ValueError(f"its actions must be actions of 0 ... {ATARI_ACTIONS - 1}")
    rewards = arrays.get("rewards")
    if rewards is not None:
        if rewards.shape != frames.shape or not np.isfinite(rewards).all():
            raise ValueError(f"rewards of shape {rewards.shape} for {frames.size} actions")
        rewards = rewards.astype(np.float64)
    score = float(_get_scalar(arrays, "score"))
    tape = InputLog(frames.astype(np.uint8), writes.astype(np.int32))
    if "phase" in arrays:
        tape = replace(tape, phase=int(_get_scalar(arrays, "phase")) % action_repeat)
    else:
        tape = with_best_phase(tape, action_repeat)
    return str(_get_scalar(arrays, "rom"))[:100], tape, RecordedOutcome(score, rewards, {})


def _get_scalar(arrays: dict[str, np.ndarray], name: str) -> Any:
    if arrays[name].shape != ():
        raise ValueError(f"{name} must be one value")
    return arrays[name][()]


def _env_from_rom(game: str) -> str:
    """The id of a ROM's name."""
    import gymnasium

    from lookfurther.envs.factory import find_env_spec

    find_env_spec("ALE/Pong-v5")  # registers them all
    for name, spec in gymnasium.registry.items():
        if is_atari(spec.id) and spec.kwargs.get("game") == game:
            return name
    raise DemonstrationError(f"ale-py has no game {game!r}")
