"""lookfurther demos search, bot, agent"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.demos.arguments import EnvId, RunPath
from lookfurther.cli.demos.formatting import format_audited_episode
from lookfurther.cli.demos.transfer import check_env_config, print_saved_set
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system.processes import parallel_map
from lookfurther.types import Spec

if TYPE_CHECKING:
    import gymnasium

    from lookfurther.demos.go_explore import SearchProgress

GRID_WRAPPER = "lookfurther.envs.minigrid:OneHotGrid"


@dataclass(frozen=True)
class SearchOptions:
    """Find demonstrations of an Atari game without a player, by search in its emulator."""

    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")] = tyro.MISSING
    """such as MontezumaRevenge, montezuma_revenge or ALE/MontezumaRevenge-v5"""
    name: str = ""
    """the new set"""
    frames: int = 10_000_000
    """emulator frames to play"""
    minutes: float = 0.0
    """stop after so many minutes even if frames are left; 0: never"""
    episodes: int = 1
    """how many plays to keep, no two of them alike in their first half"""
    processes: int = 0
    """processes that explore; 0: one for each core. Only with 1 does a seed repeat a search"""
    seed: int = 0
    """of the choices of cells and actions"""


@dataclass(frozen=True)
class BotOptions:
    """Let MiniGrid's scripted expert play a BabyAI level."""

    env: EnvId = tyro.MISSING
    """the level, such as BabyAI-GoToLocal-v0"""
    name: str = ""
    """the new set"""
    episodes: int = 10
    """how many, each from a seed of its own"""
    seed: int = 0
    """of the first episode; each has the next one"""
    environment: EnvConfig = field(default_factory=EnvConfig)


@dataclass(frozen=True)
class AgentOptions:
    """Let a trained agent play."""

    run: RunPath = tyro.MISSING
    """its run folder or checkpoint"""
    name: str = ""
    """the new set"""
    episodes: int = 10
    """how many"""
    epsilon: float = 0.001
    """probability of a random action"""
    seed: int = 0
    """of the first episode"""
    modules: tuple[str, ...] = ()
    """modules to import first: those that register the environment or hold its wrappers"""


def search_demos(options: SearchOptions) -> int:
    """Search, saying how it goes, and save what was found; Ctrl-C ends a search early."""
    from lookfurther.demos.go_explore import SearchConfig as Wanted
    from lookfurther.demos.go_explore import run_search
    from lookfurther.envs import get_spec

    name, env = catalog.new_set_id(options.name), to_env_id(options.game)
    if options.frames < 1:
        raise ConfigError(f"frames must be at least 1, not {options.frames}")
    wanted = Wanted(
        env, options.frames, options.minutes, options.processes, options.seed, options.episodes
    )
    episodes = run_search(wanted, SearchProgressPrinter())
    save_and_report(
        name, episodes, get_spec(env, EnvConfig()), f"search of {options.frames:,} frames"
    )
    return 0


class SearchProgressPrinter:
    """Says how a search goes: when the score rises, and every ten seconds."""

    def __init__(self) -> None:
        self.best_score, self.last_printed = 0.0, 0.0

    def __call__(self, progress: SearchProgress) -> None:
        if progress.best_score > self.best_score or progress.seconds > self.last_printed + 10:
            self.best_score, self.last_printed = progress.best_score, progress.seconds
            print(
                f"{progress.frames:13,} frames {progress.seconds:6.0f} s"
                f" {progress.num_cells:8,} cells"
                f"  best return {progress.best_score:,.0f} after {progress.best_steps:,} steps",
                flush=True,
            )


def to_env_id(game: str) -> str:
    """ALE/MontezumaRevenge-v5, for that or for MontezumaRevenge or montezuma_revenge."""
    if "/" in game:
        return game
    words = game.split("_") if "_" in game or game.islower() else [game]
    return f"ALE/{''.join(w[:1].upper() + w[1:] for w in words)}-v5"


def record_bot(options: BotOptions) -> int:
    """Play, replay and save."""
    from lookfurther.demos.collect import collect_episodes

    name, seeds = catalog.new_set_id(options.name), _episode_seeds(options)
    environment = options.environment
    check_env_config(environment)
    if not environment.wrappers and options.env.startswith(("BabyAI-", "MiniGrid-")):
        environment = replace(environment, wrappers=(GRID_WRAPPER,))
        print(
            f"observations through {GRID_WRAPPER}: train with --environment.wrappers {GRID_WRAPPER}"
        )
    episodes, spec = collect_episodes(options.env, environment, _make_bot_policy, seeds)
    save_and_report(
        name, audit_episodes(episodes, spec, environment), spec, "MiniGrid's bot", environment
    )
    return 0


def _make_bot_policy(env: gymnasium.Env) -> Callable[[], int]:
    """MiniGrid's expert, for the levels it knows."""
    from lookfurther.demos.collect import babyai_bot

    level = type(getattr(env, "unwrapped", env))  # an Atari game comes as an emulator
    if "babyai" not in level.__module__:
        name = getattr(env, "game", level.__name__)
        raise DemonstrationError(f"{name} is no BabyAI level, and the bot plays only those")
    return babyai_bot(env)


def record_agent(options: AgentOptions) -> int:
    """Play, replay and save."""
    from lookfurther.agent import Agent
    from lookfurther.demos.collect import ObservationPolicy, collect_episodes

    name, seeds = catalog.new_set_id(options.name), _episode_seeds(options)
    if not 0 <= options.epsilon <= 1:
        raise ConfigError(f"epsilon must be 0 ... 1, not {options.epsilon:g}")
    player = Agent.load(options.run, modules=options.modules)
    environment = player.config.environment
    policy = ObservationPolicy(partial(player.act, epsilon=options.epsilon))
    episodes, spec = collect_episodes(player.config.env, environment, policy, seeds)
    source = f"the agent of {options.run}"
    save_and_report(name, audit_episodes(episodes, spec, environment), spec, source, environment)
    return 0


def _episode_seeds(options: BotOptions | AgentOptions) -> range:
    if options.episodes < 1 or options.seed < 0:
        raise ConfigError("episodes must be at least 1 and seed at least 0")
    return range(options.seed, options.seed + options.episodes)


def audit_episodes(episodes: Sequence[Episode], spec: Spec, env_config: EnvConfig) -> list[Episode]:
    """The episodes with what a replay of each showed."""
    from lookfurther.demos.verify import verify_episode

    audits = parallel_map(partial(verify_episode, spec=spec, env_config=env_config), episodes)
    return [replace(e, audit=a) for e, a in zip(episodes, audits, strict=True)]


def save_and_report(
    name: str,
    episodes: Sequence[Episode],
    spec: Spec,
    source: str,
    env_config: EnvConfig | None = None,
) -> None:
    """Save a new set, saying what is in it."""
    for i, episode in enumerate(episodes):
        print(format_audited_episode(f"episode {i}", episode))
    place = storage.save_episodes(name, episodes, spec, source, env_config=env_config)
    print_saved_set(name, episodes, place)
