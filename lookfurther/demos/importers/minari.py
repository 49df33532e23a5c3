"""Minari datasets made by others, as episodes that training can use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lookfurther.config import Environment
from lookfurther.demos import storage
from lookfurther.demos.bounded_json import LARGEST
from lookfurther.demos.catalog import trusted
from lookfurther.demos.episode import Audit, Episode, Tape, check
from lookfurther.demos.importers import Imported
from lookfurther.demos.importers.minari_files import Facts, Raw, episodes, read_facts
from lookfurther.demos.playback import ambiguous, cut, play, unroll, with_best_phase
from lookfurther.demos.verify import verify
from lookfurther.envs import describe
from lookfurther.envs.emulator import STANDARD, Emulator, Variant, game_of, shrink, variant_of
from lookfurther.errors import DemonstrationError, LookFurtherError
from lookfurther.types import Spec

NOOPS = 30  # most no-ops that may have come before the first stored step
NEAR = 6.0  # mean difference of pixels up to which two pictures are of the same moment
LUMA = (0.2989, 0.5870, 0.1140)  # of red, green and blue, as the emulator's grey has them
BATCH = 256  # observations converted together


def read(
    path: Path, env: str, environment: Environment, force: bool, modules: Sequence[str] = ()
) -> Imported:
    """The episodes of a dataset, ours or another's, by its folder or its HDF5 file."""
    folder = path.parent if path.is_file() else path
    folder = folder if (folder / "metadata.json").exists() else folder / "data"
    if b'"lookfurther"' in _metadata(folder):
        return _ours(folder, env, force, modules)
    try:
        facts = read_facts(folder)
        env = env or facts.env
        if not env or (env == facts.env and ":" in env):
            raise DemonstrationError(f"{path} does not say its environment: name it with --env")
        return _foreign(str(path), folder, facts, env, environment, force)
    except LookFurtherError:
        raise
    except Exception as error:  # whatever a cut, altered or hostile file leads to
        reason = " ".join(f"{type(error).__name__}: {str(error)[:200]}".split())
        raise DemonstrationError(f"{path} is no readable Minari dataset: {reason}") from error


def _ours(folder: Path, env: str, force: bool, modules: Sequence[str]) -> Imported:
    """A set of our own, which someone has shared: replayed again here."""
    name = str(folder.parent)
    description = storage.describe(name)
    environment = trusted(description, modules)
    spec = description.spec
    found = storage.load(name, spec, environment=environment)
    played = spec._replace(env=env or spec.env)
    audits = [verify(episode, played, environment) for episode in found]
    for i, (episode, audit) in enumerate(zip(found, audits, strict=True)):
        if audit.mismatch and _replayable(episode) and not force:
            raise DemonstrationError(f"{name}, episode {i}: {audit.mismatch}; force takes it")
    return Imported(
        [replace(e, audit=a) for e, a in zip(found, audits, strict=True)], spec, environment
    )


def _metadata(folder: Path) -> bytes:
    path = folder / "metadata.json"
    if not path.is_file():
        raise DemonstrationError(f"{folder} holds no Minari dataset")
    with path.open("rb") as file:
        return file.read(LARGEST)


def _replayable(episode: Episode) -> bool:
    return episode.seed is not None or episode.tape is not None


def _foreign(
    source: str, folder: Path, facts: Facts, env: str, environment: Environment, force: bool
) -> Imported:
    spec = describe(env, environment)
    atari = spec.env.startswith("ALE/")
    if atari:
        environment = replace(environment, sticky=facts.sticky)
    found = []
    for i, raw in enumerate(episodes(folder, facts)):
        if atari:
            episode = _atari(raw, facts, spec, environment)
        else:
            episode = _gymnasium(raw, spec, environment, facts)
        audit = episode.audit
        if audit and audit.mismatch and (atari or _replayable(episode)) and not force:
            where = f"{source}, episode {i}"
            raise DemonstrationError(f"{where}: {audit.mismatch}; force takes it as it is")
        found.append(episode)
    check(found, spec, source)
    return Imported(found, spec, environment)


def _gymnasium(raw: Raw, spec: Spec, environment: Environment, facts: Facts) -> Episode:
    """An episode of another environment, its observations as they are."""
    if facts.jpeg:
        raise DemonstrationError("its observations are JPEG, and only Atari games can mend that")
    planes = raw.observations(0, len(raw.actions) + 1)
    if planes.ndim == 4 and environment.layout == "hwc":
        planes = planes.transpose(0, 3, 1, 2)
    if planes.ndim == 3:
        planes = planes[:, None]
    if planes.shape[1:] != spec.plane:
        raise DemonstrationError(
            f"its observations are {facts.shape}, {spec.env} shows {spec.plane}"
        )
    if spec.dtype == "uint8" and planes.dtype.kind not in "iu":
        raise DemonstrationError(
            f"its observations are {planes.dtype}, {spec.env} shows whole numbers"
        )
    planes = np.ascontiguousarray(planes, spec.dtype)
    rewards = raw.rewards.astype(np.float32)
    episode = Episode(planes, raw.actions, rewards, raw.terminal, raw.seed)
    return replace(episode, audit=verify(episode, spec, environment))


def _atari(raw: Raw, facts: Facts, spec: Spec, environment: Environment) -> Episode:
    """An episode of an Atari game: played again where that gives what was stored.

    That makes whole what JPEG, another size or a missing frame has spoilt.
    """
    variant = variant_of(game_of(spec.env), facts.mode, facts.difficulty)
    seed = 0
    if raw.seed is not None:  # as ale-py's own environment draws it
        seed = int(np.random.SeedSequence(raw.seed).generate_state(2)[1].astype(np.int32))
    emulator = Emulator(spec.env, 1, facts.sticky, seed, variant=variant)
    ids = _action_ids(raw, facts, emulator)
    tape = _tape(ids, raw, facts, Tape(ids[:0], seed=seed, variant=variant), emulator)
    if tape is None:
        fault = "its actions do not lead to its rewards and pictures"
        played = f"{fault}, played with {facts.frames} frames a step{_words(variant)}"
        if variant != STANDARD or facts.frames != environment.repeat:
            raise DemonstrationError(f"{played}, which its pictures alone cannot say")
        actions = np.searchsorted(emulator.legal, ids)
        return _converted(raw._replace(actions=actions), facts, spec, fault)
    tape = with_best_phase(tape, environment.repeat)
    episode = unroll(tape, spec.env, environment.repeat, environment.sticky)
    several = ambiguous(tape, environment.repeat)
    score = float(raw.rewards.sum())
    checks = {"rewards": len(raw.rewards), "end": 1, "last_picture": 1}
    audit = Audit(True, score, episode.score, len(tape.frames), several, "", checks)
    return replace(episode, audit=audit)


def _words(variant: Variant) -> str:
    chosen = variant._asdict().items()
    return "".join(f", {word} {value}" for word, value in chosen if value is not None)


def _action_ids(raw: Raw, facts: Facts, emulator: Emulator) -> np.ndarray:
    """The emulator's id of each step's action, [T] uint8."""
    sets = {len(ids): ids for ids in (emulator.legal, emulator.actions)}
    if facts.actions not in sets:
        raise DemonstrationError(
            f"{emulator.game} has {min(sets)} actions of its own, not {facts.actions}"
        )
    return np.array(sets[facts.actions], np.uint8)[raw.actions]


def _tape(ids: np.ndarray, raw: Raw, facts: Facts, blank: Tape, emulator: Emulator) -> Tape | None:
    """The frames that give the stored rewards and the last picture, after 0 ... 30 no-ops."""
    steps = np.repeat(ids, facts.frames)
    last = raw.observations(len(raw.actions), len(raw.actions) + 1)[0]
    for noops in range(NOOPS + 1):
        lead = np.zeros(noops * facts.noop, np.uint8)
        tape = replace(blank, frames=np.concatenate([lead, steps]))
        if noops:
            emulator.reset()
        if (length := _reproduced(tape, len(lead), raw, facts.frames, emulator)) and (
            _near(last, emulator, facts)
        ):
            return cut(tape, length)
    return None


def _reproduced(tape: Tape, lead: int, raw: Raw, frames: int, emulator: Emulator) -> int:
    """How many frames were played if every stored reward came in its step and the end in its
    place, else 0."""
    total, step = 0.0, 0
    for i, reward in enumerate(play(tape, emulator), 1 - lead):
        total += reward
        if i == 0 and total:
            return 0
        if i > 0 and (i % frames == 0 or emulator.over):
            if total != raw.rewards[step]:
                return 0
            total, step = 0.0, step + 1
    right = step == len(raw.rewards) and emulator.over == raw.terminal
    return emulator.frames if right else 0


def _near(last: np.ndarray, emulator: Emulator, facts: Facts) -> bool:
    """Whether the last observation is a picture of where the emulator stands."""
    screen = emulator.screen()
    if last.shape == screen.shape:
        distance = np.abs(last.astype(float) - screen)
        return bool(distance.max() == 0 if not facts.jpeg else distance.mean() <= NEAR)
    plane = _newest(last, facts)
    return bool(np.abs(plane.astype(float) - shrink(_grey(screen))).mean() <= NEAR)


def _grey(colours: np.ndarray) -> np.ndarray:
    return np.rint(colours @ np.array(LUMA)).astype(np.uint8)


def _newest(observation: np.ndarray, facts: Facts) -> np.ndarray:
    """The [84, 84] plane of one observation: of a screen, a plane or a stack of planes."""
    shape = observation.shape
    if observation.dtype.kind == "f" and 0 <= observation.min() <= observation.max() <= 1:
        observation = np.rint(255 * observation).astype(np.uint8)  # as scale_obs makes them
    if observation.ndim == 3 and shape[1:] == (160, 3):
        return shrink(_grey(observation))
    colours = 3 in (shape[0], shape[-1])  # or three planes: nothing tells
    if observation.dtype == np.uint8 and not colours:
        if shape[-2:] == (84, 84):
            return observation.reshape(-1, 84, 84)[-1]
        if shape[:2] == (84, 84):
            return observation[..., -1]
    raise DemonstrationError(
        f"observations of shape {facts.shape} are no screens or grey planes of an Atari game"
    )


def _converted(raw: Raw, facts: Facts, spec: Spec, fault: str) -> Episode:
    """An episode as its stored pictures show it, without what they do not show."""
    steps = len(raw.actions)
    planes = np.empty((steps + 1, *spec.plane), np.uint8)
    for low in range(0, steps + 1, BATCH):
        for i, observation in enumerate(raw.observations(low, low + BATCH), low):
            planes[i, 0] = _newest(observation, facts)
    if not planes.any():
        raise DemonstrationError(f"{fault}, and its pictures are black")
    audit = Audit(False, float(raw.rewards.sum()), None, 0, 0, fault)
    rewards = raw.rewards.astype(np.float32)
    return Episode(planes, raw.actions, rewards, raw.terminal, raw.seed, audit=audit)
