"""The numbers of an analysis as JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from lookfurther.analysis import Analysis
from lookfurther.analysis.rollouts import DemonstrationRollout, Divergence
from lookfurther.analysis.standstill import EpisodeTrace, StandstillPlace

OTHER_OBSERVATION, WITHIN_NOISE, PREFERRED = (
    "another observation than the demonstrator's",
    "the values of both actions are closer than the one-step error",
    "the agent's action has a clearly higher value",
)


def divergence_reason(divergence: Divergence, noise: float) -> str:
    """Why a rollout leaves the demonstration; `noise` is the median one-step error."""
    if not divergence.is_same_observation:
        return OTHER_OBSERVATION
    return WITHIN_NOISE if divergence.action_gap <= noise else PREFERRED


def analysis_to_json(analysis: Analysis) -> str:
    """All numbers of the page, and the values at every step of the demonstration."""
    agent, demonstration, settings = analysis.agent, analysis.demonstration, analysis.settings
    names, values = analysis.action_names, analysis.values
    content = {
        "env": agent.spec.env,
        "agent_step": agent.step,
        "demonstration": {
            "name": demonstration.name,
            "steps": len(demonstration.episode),
            "score": demonstration.episode.score,
        },
        "settings": {"every": settings.every, "steps": settings.steps}
        | settings.episodes._asdict(),
        "actions": names,
        "notes": analysis.notes,
        "values": {
            "agreement": values.agreement,
            "shortfall": values.shortfall,
            "median_one_step_error": values.noise,
            "steps": {name: array.tolist() for name, array in values._asdict().items()},
        },
        "rollouts": [_rollout_to_dict(r, names, values.noise) for r in analysis.rollouts],
        "episodes": [_trace_to_dict(trace) for trace in analysis.traces],
        "places": [_place_to_dict(place, names) for place in analysis.places],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _rollout_to_dict(
    rollout: DemonstrationRollout, names: tuple[str, ...], noise: float
) -> dict[str, Any]:
    found = rollout.divergence
    leaves = None
    if found is not None:
        leaves = {
            "step": found.step,
            "agent_action": names[found.agent_action],
            "demonstrated_action": names[found.demonstrated_action],
            "agent_value": found.agent_value,
            "demonstrated_value": found.demonstrated_value,
            "is_same_observation": found.is_same_observation,
            "reason": divergence_reason(found, noise),
        }
    return {
        "start": rollout.start,
        "steps": rollout.steps,
        "is_game_over": rollout.is_game_over,
        "agent_score": rollout.agent_score,
        "demonstrated_score": rollout.demonstrated_score,
        "leaves": leaves,
    }


def _trace_to_dict(trace: EpisodeTrace) -> dict[str, Any]:
    order = trace.reward_order
    return {
        "score": trace.score,
        "steps": trace.steps,
        "is_over": trace.is_over,
        "standstills": [[s.first_step, s.steps] for s in trace.standstills],
        "life_losses": [loss._asdict() for loss in trace.life_losses],
        "reward_order": {
            "shared_rewards": order.shared_rewards,
            "next_reward": order.next_reward and order.next_reward._asdict(),
            "demonstrated_reward": order.demonstrated_reward
            and order.demonstrated_reward._asdict(),
        },
    }


def _place_to_dict(place: StandstillPlace, names: tuple[str, ...]) -> dict[str, Any]:
    first = place.standstills[0]
    return {
        "episodes": place.episodes,
        "steps": place.steps,
        "distinct_planes": place.distinct_planes,
        "score": first.score,
        "actions": name_counts(place.action_counts, names),
        "values": dict(zip(names, first.q_values.tolist(), strict=True)),
        "demonstrated_actions": name_counts(place.demonstrated_actions, names),
    }


def name_counts(counts: Counter[int], names: tuple[str, ...]) -> dict[str, int]:
    """Counts by the names of the actions, the most frequent first."""
    return {names[action]: count for action, count in counts.most_common()}
