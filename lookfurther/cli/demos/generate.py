"""lookfurther demos search, bot, agent"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.demos.arguments import EnvId, NewSetName, RunPath
from lookfurther.cli.demos.formatting import format_audited_episode
from lookfurther.cli.demos.transfer import check_env_config, save_new_set
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.types import Spec

if TYPE_CHECKING:
    import gymnasium

    from lookfurther.demos.go_explore import SearchProgress

GRID_WRAPPER = "lookfurther.envs.minigrid:OneHotGrid"


@dataclass(frozen=True)
class SearchOptions:
    """Search an Atari game for demonstrations, without a player."""

    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")] = tyro.MISSING
    """such as MontezumaRevenge, montezuma_revenge or ALE/MontezumaRevenge-v5"""
    name: NewSetName = ""
    """the new set"""
    frames: int = 10_000_000
    """emulator frames to play"""
    minutes: float = 0.0
    """stop after this many minutes even if frames are left; 0: no limit"""
    episodes: int = 1
    """episodes to save, no two with the same first half"""
    processes: int = 0
    """worker processes; 0: one per core. The search is reproducible from its seed only with 1"""
    seed: int = 0
    """seed of the choices of cells and actions"""


@dataclass(frozen=True)
class BotOptions:
    """Record MiniGrid's scripted expert in a BabyAI level."""

    env: EnvId = tyro.MISSING
    """the level, such as BabyAI-GoToLocal-v0"""
    name: NewSetName = ""
    """the new set"""
    episodes: int = 10
    """number of episodes"""
    seed: int = 0
    """seed of the first episode; each later one has the next seed"""
    environment: EnvConfig = field(default_factory=EnvConfig)


@dataclass(frozen=True)
class AgentOptions:
    """Record a trained agent."""

    run: RunPath = tyro.MISSING
    """its run folder or checkpoint"""
    name: NewSetName = ""
    """the new set"""
    episodes: int = 10
    """number of episodes"""
    epsilon: float = 0.001
    """probability of a random action"""
    seed: int = 0
    """seed of the first episode; each later one has the next seed"""
    modules: tuple[str, ...] = ()
    """modules to import first, which register the environment or define its wrappers"""


def search_demos(options: SearchOptions) -> int:
    """Search, print the progress and save the result; Ctrl-C ends the search early."""
    from lookfurther.demos.go_explore import SearchConfig, run_search
    from lookfurther.envs import get_spec

    name, env = catalog.new_set_id(options.name), to_env_id(options.game)
    config = SearchConfig(
        env, options.frames, options.minutes, options.processes, options.seed, options.episodes
    )
    episodes = run_search(config, SearchProgressPrinter())
    source, env_config = f"search of {options.frames:,} frames", EnvConfig()
    save_and_report(name, episodes, get_spec(env, env_config), source, env_config)
    return 0


class SearchProgressPrinter:
    """Prints the progress of a search when the score rises, and every ten seconds."""

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
    """Return ALE/MontezumaRevenge-v5 for MontezumaRevenge, montezuma_revenge or the id itself."""
    if "/" in game:
        return game
    parts = game.split("_") if "_" in game or game.islower() else [game]
    return f"ALE/{''.join(part[:1].upper() + part[1:] for part in parts)}-v5"


def record_bot(options: BotOptions) -> int:
    """Record, replay and save episodes."""
    from lookfurther.demos.collect import collect_episodes

    name, seeds = catalog.new_set_id(options.name), _episode_seeds(options)
    env_config = options.environment
    check_env_config(env_config)
    if not env_config.wrappers and options.env.startswith(("BabyAI-", "MiniGrid-")):
        env_config = replace(env_config, wrappers=(GRID_WRAPPER,))
        print(f"wrapped in {GRID_WRAPPER}: train with --environment.wrappers {GRID_WRAPPER}")
    episodes, spec = collect_episodes(options.env, env_config, _make_bot_policy, seeds)
    episodes = audit_episodes(episodes, spec, env_config, _registering_modules(options.env))
    save_and_report(name, episodes, spec, "MiniGrid's bot", env_config)
    return 0


def _make_bot_policy(env: gymnasium.Env) -> Callable[[], int]:
    """Make MiniGrid's scripted expert; raise if the environment is not a BabyAI level."""
    from lookfurther.demos.collect import babyai_bot

    level = type(getattr(env, "unwrapped", env))  # for an Atari game, `env` is an emulator
    if "babyai" not in level.__module__:
        name = getattr(env, "game", level.__name__)
        raise DemonstrationError(f"{name} is not a BabyAI level, and the bot plays only those")
    return babyai_bot(env)


def record_agent(options: AgentOptions) -> int:
    """Record, replay and save episodes."""
    from lookfurther.agent import Agent
    from lookfurther.demos.collect import ObservationPolicy, collect_episodes

    name, seeds = catalog.new_set_id(options.name), _episode_seeds(options)
    if not 0 <= options.epsilon <= 1:
        raise ConfigError(f"epsilon must be 0 ... 1, not {options.epsilon:g}")
    agent = Agent.load(options.run, modules=options.modules)
    env_config = agent.config.environment
    policy = ObservationPolicy(partial(agent.act, epsilon=options.epsilon))
    episodes, spec = collect_episodes(agent.config.env, env_config, policy, seeds)
    modules = (*options.modules, *_registering_modules(agent.config.env))
    episodes = audit_episodes(episodes, spec, env_config, modules)
    save_and_report(name, episodes, spec, f"the agent of {options.run}", env_config)
    return 0


def _episode_seeds(options: BotOptions | AgentOptions) -> range:
    if options.episodes < 1 or options.seed < 0:
        raise ConfigError("episodes must be at least 1 and seed at least 0")
    return range(options.seed, options.seed + options.episodes)


def audit_episodes(
    episodes: Sequence[Episode], spec: Spec, env_config: EnvConfig, modules: Sequence[str]
) -> list[Episode]:
    """Replay the episodes and attach the audits."""
    from lookfurther.demos.verify import verify_episodes

    audits = verify_episodes(episodes, spec, env_config, modules)
    return [replace(e, audit=a) for e, a in zip(episodes, audits, strict=True)]


def _registering_modules(env: str) -> tuple[str, ...]:
    """The module of an id `module:id`, which other processes must import too."""
    module, _, _ = env.rpartition(":")
    return (module,) if module else ()


def save_and_report(
    name: str, episodes: Sequence[Episode], spec: Spec, source: str, env_config: EnvConfig
) -> None:
    """Print the episodes and save them as a new set."""
    for i, episode in enumerate(episodes):
        print(format_audited_episode(f"episode {i}", episode))
    save_new_set(name, episodes, spec, source, env_config)
