"""lookfurther record ENV [--name SET] [options]"""

from __future__ import annotations

import contextlib
import re
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.options.parsing import Flag, parse_options
from lookfurther.config import Config, EnvConfig, replace
from lookfurther.demos import catalog
from lookfurther.errors import ConfigError
from lookfurther.validation import validate

if TYPE_CHECKING:
    from lookfurther.recorder.session import RecordingSession


@dataclass(frozen=True)
class RecordOptions:
    """Play an environment in the browser and save the episodes as demonstrations."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = tyro.MISSING
    """environment id, such as ALE/MontezumaRevenge-v5"""
    name: str = ""
    """demonstration set for the episodes; empty: recorded/ and the environment's name"""
    host: str = "127.0.0.1"
    """address of the page; any but this machine's lets other machines connect"""
    port: int = 0
    """port of the page; 0: any free port"""
    seed: int = 0
    """seed of the first episode of the set; each later episode adds one"""
    keys: tuple[str, ...] = ()
    """ACTION=KEY pairs, such as forward=up 5=space; not for Atari"""
    real_time: Flag = False
    """do not wait for a key before each step; Atari never waits"""
    idle: int = 0
    """action of a real-time step if no key is held; not for Atari"""
    open: Flag = False
    """open the page in the browser"""
    environment: EnvConfig = field(default_factory=EnvConfig)


def run(args: list[str]) -> int:
    """Serve the page until Ctrl-C."""
    options = parse_options(RecordOptions, RecordOptions(), args, "lookfurther record")
    name = catalog.growing_set_id(options.name or default_set_name(options.env))
    validate(replace(Config(), env=options.env, demos=(name,), environment=options.environment))
    if not 0 <= options.seed < 2**31:
        raise ConfigError(f"--seed must be 0 ... 2^31 - 1, not {options.seed}")
    try:
        from lookfurther.recorder.server import serve_page
    except ImportError as error:
        raise ConfigError(f"record needs {error.name}: install lookfurther[record]") from None

    def announce(address: str) -> None:
        print(f"play {options.env} at {address}")
        print(f"episodes are added to the set {name}; press Ctrl-C to stop", flush=True)
        if options.open:
            webbrowser.open(address)

    with open_recorder(options, name) as source, contextlib.suppress(KeyboardInterrupt):
        serve_page(source, options.host, options.port, announce)
    return 0


@contextlib.contextmanager
def open_recorder(options: RecordOptions, name: str) -> Iterator[RecordingSession]:
    """Open the recording session for the options."""
    from lookfurther.recorder.dataset import RecordedDataset, recorder_dir
    from lookfurther.recorder.games import make_game
    from lookfurther.recorder.journal import Journal
    from lookfurther.recorder.session import RecordingSession

    env_config = options.environment
    with (
        contextlib.closing(Journal(recorder_dir(name) / "unfinished.jsonl")) as journal,
        contextlib.closing(
            make_game(options.env, env_config, options.keys, options.real_time, options.idle)
        ) as game,
    ):
        shelf = RecordedDataset(name, game.spec, env_config)
        yield RecordingSession(game, env_config, shelf, journal, options.seed)


def default_set_name(env: str) -> str:
    """Return recorded/MontezumaRevenge-v0 for ALE/MontezumaRevenge-v5."""
    last = re.split(r"[/:]", env)[-1]
    return f"recorded/{re.sub(r'-v[0-9]+$', '', last)}-v0"
