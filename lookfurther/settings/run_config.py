"""The settings of a run that do not belong to the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RunConfig:
    """Where, how long and on which device to train."""

    folder: str = ""
    """run folder; empty: runs/ENV-PRESET-SEED"""
    steps: int = 50_000_000
    """agent steps to train for"""
    minutes: float = 0.0
    """stop after this many minutes of wall time; 0: no limit"""
    seed: int = 0
    """seed of all random numbers"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """precision of arithmetic; weights stay float32. auto: bfloat16 if the device has it"""
    compile: Literal["auto", "on", "off"] = "auto"
    """compile the learner's arithmetic, which takes half a minute. auto: on a GPU only"""
    threads: int = 0
    """threads of the learner on a CPU; 0: chosen from the cores"""
    evaluate_period: int = 0
    """agent steps between evaluations that choose the best checkpoint; 0: never"""
    evaluate_episodes: int = 40
    """episodes of each such evaluation, at epsilon 0.001"""
    log_period: int = 2_000
    """agent steps between metrics"""
    loggers: tuple[Literal["tensorboard", "csv", "wandb", "trackio"], ...] = ("tensorboard",)
    """where metrics go in addition to metrics.jsonl"""
    checkpoint_period: int = 1_000_000
    """agent steps between checkpoints; 0: only at the end"""
    checkpoint_minutes: float = 15.0
    """minutes between checkpoints, in addition; 0: never"""
    keep_checkpoints: int = 2
    """number of newest checkpoints to keep"""
    keep_final_replay: bool = True
    """store the replay also when steps or minutes are used up; --resume needs it"""
