"""The main job: learn a sparse-reward task from eight demonstrations, on two cores.

BabyAI's UnlockPickup (find the key, open the locked door, pick up the box) gives its only reward
at the end, and random play never gets it. A scripted expert demonstrates eight layouts once each.
The budget is agent steps: a busy machine gives the same result, only later.
`make train` runs this; `python -m examples.unlock_pickup --help` lists the options.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from lookfurther import Agent, Config, evaluate, preset, train
from lookfurther.demos.collect import babyai_bot, collect_episodes
from lookfurther.demos.episode import Episode
from lookfurther.demos.storage import save_episodes
from lookfurther.envs.minigrid import UNLOCK_LAYOUTS, UNLOCK_PICKUP
from lookfurther.report.learning_curve import plot_learning_curve
from lookfurther.training.throughput import ThroughputBenchmark
from lookfurther.video.encode import write_gif

ENV = f"lookfurther.envs.minigrid:{UNLOCK_PICKUP}"
STEPS = 80_000
TRIAL_SECONDS = 5.0  # to measure the speed
RESULTS_FILE = Path(__file__).parents[1] / "benchmarks/results/main_job.json"


def make_config(demos: Path | None, folder: Path, seed: int = 0, steps: int = STEPS) -> Config:
    """The paper's agent at the small scale; without demonstrations, the paper's ablation."""
    name = "no-demos" if demos is None else "apex-dqfd"
    return preset(
        name,
        "small",
        env=ENV,
        demos=() if demos is None else (str(demos),),
        network__convolutions=(16, 32),
        network__hidden=(64,),
        learner__gamma=0.99,  # episodes of at most 72 steps
        learner__imitated_episodes="all",  # each layout is a different task
        run__folder=str(folder),
        run__steps=steps,
        run__seed=seed,
        run__checkpoint_period=0,
        run__checkpoint_minutes=0.0,  # the result does not depend on the clock
        run__evaluate_period=5_000,  # the result is the best of these, as in the paper
    )


def collect_demos(root: Path) -> tuple[Path, list[Episode]]:
    """Save one episode of MiniGrid's scripted expert per layout as a Minari dataset."""
    config = make_config(None, root)
    episodes, spec = collect_episodes(
        ENV, config.environment, babyai_bot, range(len(UNLOCK_LAYOUTS))
    )
    return save_episodes("unlock-pickup/bot-v0", episodes, spec, "BabyAIBot", root), episodes


def print_time_estimate(config: Config) -> None:
    """Print how long training will take, from the speed of a short trial."""
    with closing(ThroughputBenchmark(config, TRIAL_SECONDS)) as bench:
        rate = bench.training()["steps"]
    print(
        f"training takes {config.run.steps:,} steps, however long that is: about"
        f" {config.run.steps / rate / 60:.0f} minutes at the {rate:,.0f} steps/s measured now,"
        " more if the machine gets busier",
        flush=True,
    )


def record_gif(agent: Agent, out: Path) -> None:
    """A GIF of the trained agent, one episode of each of three layouts."""
    env = gymnasium.make(ENV, render_mode="rgb_array")
    frames, captions = [], []
    for seed in range(3):
        x, _ = env.reset(seed=seed)
        done, total = False, 0.0
        while not done:
            frames.append(np.asarray(env.render()))
            captions.append(f"layout {seed}  return {total:.2f}")
            x, reward, terminal, truncated, _ = env.step(int(agent.act(x.transpose(2, 0, 1))))
            done, total = terminal or truncated, total + float(reward)
        frames += [np.asarray(env.render())] * 4
        captions += [f"layout {seed}  return {total:.2f}"] * 4
    env.close()
    write_gif(frames, out, fps=6, captions=captions)


def format_table(rows: dict[str, tuple[float, float]]) -> str:
    """Rows of name, mean return and success."""
    lines = [f"{'':34}{'return':>8}{'success':>10}"]
    for name, (score, success) in rows.items():
        lines.append(f"{name:34}{score:>8.3f}{success:>10.1%}")
    return "\n".join(lines)


def print_summary(figures: dict[str, Any], has_demos: bool, folder: Path) -> None:
    """The scores next to the expert's and those without demonstrations, and where the files are."""
    rows = {
        "agent (200 episodes)": (figures["return"], figures["success"]),
        f"expert ({len(UNLOCK_LAYOUTS)} demonstrations)": (figures["expert"], 1.0),
    }
    if RESULTS_FILE.exists() and has_demos:
        measured = json.loads(RESULTS_FILE.read_text())["no_demos"]
        mean_return, mean_success = (
            float(np.mean([run[key] for run in measured])) for key in ("return", "success")
        )
        rows["same, no demonstrations (measured)"] = (mean_return, mean_success)
    result = "reached" if is_goal_reached(figures) else "MISSED"
    print(f"\n{format_table(rows)}\n")
    print(f"learning curve   {folder / 'curve.png'}\nagent playing    {folder / 'agent.gif'}")
    print(f"goal: the expert's mean return, or 95 % success: {result}")
    minutes, steps, updates = (figures[key] for key in ("minutes", "steps", "updates"))
    print(f"{minutes:.1f} minutes, {steps:,} steps, {updates:,} updates")
    print("\nnext, Atari:  lookfurther train no-demos --scale small --env ALE/Pong-v5")


def is_goal_reached(figures: dict[str, Any]) -> bool:
    return figures["return"] >= figures["expert"] or figures["success"] >= 0.95


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/unlock-pickup"))
    parser.add_argument("--steps", type=int, default=STEPS, help="agent steps to train for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-demos", action="store_true", help="the same without demonstrations")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    started = time.monotonic()
    shutil.rmtree(options.folder, ignore_errors=True)
    demos, episodes = collect_demos(options.folder / "demos")
    expert = float(np.mean([episode.score for episode in episodes]))
    print(f"{len(episodes)} demonstrations by MiniGrid's scripted expert, mean return {expert:.3f}")
    folder = options.folder / "run"
    used_demos = None if options.no_demos else demos
    config = make_config(used_demos, folder, options.seed, options.steps)
    print_time_estimate(config)
    summary = train(config)
    agent = Agent.load(folder)
    scores = np.array([episode.score for episode in evaluate(agent, 200)])
    references = {"expert": expert}
    plot_learning_curve(folder / "metrics.jsonl", folder / "curve.png", references=references)
    record_gif(agent, folder / "agent.gif")
    figures = {
        "seed": options.seed,
        "return": float(scores.mean()),
        "success": float((scores > 0).mean()),
        "expert": expert,
        "minutes": (time.monotonic() - started) / 60,
        "steps": summary.step,
        "updates": summary.updates,
    }
    print_summary(figures, not options.no_demos, folder)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if is_goal_reached(figures) or options.no_demos else 1


if __name__ == "__main__":
    sys.exit(main())
