"""The paper's tables with our runs beside its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import Estimate, Statistic
from lookfurther.evaluation.paper_scores import (
    AGENTS,
    CORRECTIONS,
    PLAYERS,
    STARTS,
    Starts,
    game_of,
    printed,
    titles,
)
from lookfurther.evaluation.paper_scores import references as known
from lookfurther.evaluation.results import SUMMARY, Evaluation
from lookfurther.report.runs import SEED, Group, settings, shown
from lookfurther.report.score_columns import (
    Column,
    columns,
    common,
    environments,
    normalised,
    title,
)
from lookfurther.report.table import Cell, Table, brief, number, percent, span, words

DAGGER = "†"
KINDS = (("mean", aggregates.mean), ("median", aggregates.median), ("IQM", aggregates.iqm))

Block = tuple[list[str], dict[str, list[Cell]]]  # header, cells by algorithm


def runs_table(groups: Sequence[Group]) -> Table:
    """What was trained: a row for each group."""
    header = ("environment", "variant", "seeds", "steps", "frames", "updates", "minutes")
    header += ("steps/s", "demos", "return, low ε", "best return")
    rows = []
    for group in groups:
        learner = group.config.learner
        share = 100 * learner.expert_items / group.config.batch
        rows.append(
            [
                words(title(group.env)),
                words(group.variant),
                words(", ".join(str(run.config.run.seed) for run in group.runs)),
                *(_count(group, key) for key in ("step", "frames", "updates")),
                number(_mean(group, "minutes")),
                _count(group, "steps_per_second"),
                percent(share),
                _final(group),
                number(max((_known(group, "return_best")), default=None)),
            ]
        )
    caption = (
        "Means over seeds; steps, frames, updates and minutes are those of one run. The return is"
        " the last one of the least exploring quarter of the lanes, with its 95 % interval over"
        " seeds, the best return that of a single training episode. Demos: their share of a batch."
    )
    return Table("runs", "", caption, header, rows, names=3)


def _known(group: Group, key: str) -> list[float]:
    return [value for run in group.runs if (value := run.last(key)) is not None]


def _mean(group: Group, key: str) -> float | None:
    values = _known(group, key)
    return float(np.mean(values)) if values else None


def _count(group: Group, key: str) -> Cell:
    value = _mean(group, key)
    return Cell("–") if value is None else Cell(brief(value), value)


def _final(group: Group) -> Cell:
    values = _known(group, "return_low_epsilon")
    if not values:
        return Cell("–")
    found = aggregates.estimate([np.array(values)], aggregates.mean)
    return number(found.value, span(found))


def evaluations_table(groups: Sequence[Group]) -> Table | None:
    """Each run's evaluations: statistics of their episodes."""
    rows = []
    for group in groups:
        for run in group.runs:
            for name, evaluation in run.evaluations.items():
                first = (title(group.env), group.variant, str(run.config.run.seed), name)
                rows.append([*map(words, first), *_episodes(evaluation)])
    if not rows:
        return None
    header = ("environment", "variant", "seed", "evaluation", "episodes", "mean", "median", "IQM")
    header += ("best", "human-normalised", "expert-relative")
    caption = (
        "Episodes of each run's chosen weights, with 95 % bootstrap intervals over episodes."
        " Expert-relative: 100 × (score − expert) / (expert − random); 0 is the expert."
    )
    return Table("evaluations", "", caption, header, rows, names=4)


def _episodes(evaluation: Evaluation) -> list[Cell]:
    """The summary of one evaluation as cells."""
    told = evaluation.summary()
    estimates = [Estimate(**told[kind]) for kind, _ in SUMMARY]
    shares = [told[key] for key in ("human_normalised", "expert_relative")]
    return [
        Cell(f"{told['episodes']:,}", told["episodes"]),
        *(number(found.value, span(found)) for found in estimates),
        number(told["best"]),
        *(Cell("–") if share is None else percent(share) for share in shares),
    ]


def scores_table(groups: Sequence[Group], starts: Starts) -> Table | None:
    """Tables 3 and 4: environments by variants, then the paper's columns for its games."""
    ours = columns(groups, starts)
    envs = environments(ours)
    if not envs:
        return None
    printed_too = any(game_of(env) in printed(starts) for env in envs)
    theirs = AGENTS | PLAYERS if printed_too else {}
    rows = [[words(title(env)), *_scores(env, ours, theirs, starts)] for env in envs]
    which = {"noop": "Table 3", "human": "Table 4"}[starts]
    regime = STARTS[starts] if any(map(game_of, envs)) else "whole episodes"  # no-ops are Atari's
    caption = f"In the form of {which}: {regime}, mean score of each run's episodes and 95 %"
    caption += " interval over seeds. The best of a row is bold."
    if any(not score.evaluated for column in ours for score in column.scores.values()):
        caption += f" {DAGGER} not evaluated: the last return of the low-ε lanes in training."
    if starts == "human" and printed_too:
        caption += " The starts were drawn from our own demonstrations, not those of the paper."
    header = ("environment", *(column.label for column in ours), *theirs.values())
    return Table(f"scores_{starts}", f"Scores, {regime}", caption, header, rows, paper=len(theirs))


def _scores(
    env: str, ours: Sequence[Column], theirs: Mapping[str, str], starts: Starts
) -> list[Cell]:
    """A row: our columns and the paper's, the highest score bold."""
    row = printed(starts).get(game_of(env) or "", {})
    means = [column.scores[env].mean if env in column.scores else None for column in ours]
    top = max([m.value for m in means if m] + [row[name] for name in theirs if name in row])
    cells = []
    for column, mean in zip(ours, means, strict=True):
        if mean is None:
            cells.append(Cell("–"))
        else:
            mark = "" if column.scores[env].evaluated else DAGGER
            cells.append(number(mean.value, span(mean), mark, best=mean.value == top))
    return cells + [number(row.get(name), best=row.get(name) == top) for name in theirs]


def normalised_table(groups: Sequence[Group]) -> Table | None:
    """Table 2: human-normalised aggregates, the paper's agents on the same games and on its 42."""
    blocks: list[Block] = []
    used = []
    for starts, name in STARTS.items():
        ours = columns(groups, starts)
        envs = [env for env in common(ours) if game_of(env) in known(starts)]
        if envs:
            strata = {column.label: normalised(column, envs, starts) for column in ours}
            strata |= _paper_strata([game_of(env) or "" for env in envs], starts)
            blocks.append(
                _block(f"{name}, {len(envs)} game{'s' * (len(envs) != 1)}", strata, KINDS)
            )
            used.append(f"{name}: {', '.join(map(title, envs))}")
    if not blocks:
        return None
    everything = _paper_strata(titles(), "noop")
    blocks.append(_block("no-op starts, the paper's 42 games", everything, KINDS[:2]))
    labels = dict.fromkeys(label for _, cells in blocks for label in cells)
    rows = [
        [words(a), *(c for head, cells in blocks for c in cells.get(a, [Cell("–")] * len(head)))]
        for a in labels
    ]
    caption = (
        "In the form of Table 2: 100 × (score − random) / (average human − random) over the games"
        f" that all our columns have ({'; '.join(used)}), with 95 % stratified bootstrap intervals"
        " over seeds; beside them the paper's agents on the same games, and on its 42."
    )
    header = ("algorithm", *(text for head, _ in blocks for text in head))
    return Table("human_normalised", "Human-normalised", caption, header, rows)


def _block(
    name: str, strata: Mapping[str, aggregates.Strata], kinds: Sequence[tuple[str, Statistic]]
) -> Block:
    """Aggregates of each algorithm under a common name."""
    cells = {label: [_aggregate(v, kind) for _, kind in kinds] for label, v in strata.items()}
    return [f"{kind}, {name}" for kind, _ in kinds], cells


def _paper_strata(games: Iterable[str], starts: Starts) -> dict[str, list[np.ndarray]]:
    """The paper's agents that have scores of all these games; one score is one run."""
    table = printed(starts)
    found = {}
    for name, label in AGENTS.items():
        if all(name in table.get(game, {}) for game in games):
            pairs = [(table[game][name], known(starts)[game]) for game in games]
            values = [aggregates.human_normalised(s, r.random, r.human) for s, r in pairs]
            found[label] = [np.array([value]) for value in values]
    return found


def _aggregate(strata: aggregates.Strata, kind: aggregates.Statistic) -> Cell:
    found = aggregates.estimate(strata, kind)
    return percent(found.value, span(found, lambda v: f"{v:,.0f}"))


def pairs_table(groups: Sequence[Group]) -> Table | None:
    """Table 1: on how many environments one is at least as good as another."""
    ours = columns(groups, "noop")
    table: dict[str, dict[str, float]] = {
        column.label: {env: float(score.values.mean()) for env, score in column.scores.items()}
        for column in ours
    }
    for name, label in (AGENTS | PLAYERS).items():
        own = {env: printed("noop").get(game_of(env) or "", {}) for env in environments(ours)}
        scored = {env: row[name] for env, row in own.items() if name in row}
        table |= {label: scored} if scored else {}
    against = list(table)
    algorithms = [label for label in against if label not in PLAYERS.values()]
    if len(against) < 2:
        return None
    rows = [
        [words(a), *(_count_pairs(table[a], table[b], a == b) for b in against)] for a in algorithms
    ]
    caption = (
        "In the form of Table 1: on how many of the environments that both have a score for the"
        " row does at least as well as the column (no-op starts)."
    )
    paper = len(against) - len(ours)
    return Table(
        "pairs", "One against another", caption, ("algorithm", *against), rows, paper=paper
    )


def _count_pairs(a: Mapping[str, float], b: Mapping[str, float], same: bool) -> Cell:
    shared = a.keys() & b.keys()
    if same or not shared:
        return Cell("–")
    text = f"{sum(a[env] >= b[env] for env in shared)} / {len(shared)}"
    return Cell(text, text)


def settings_table(groups: Sequence[Group]) -> Table | None:
    """The settings in which the groups differ."""
    every = [settings(group.config) for group in groups]
    apart = [n for n in every[0] if n not in SEED and any(own[n] != every[0][n] for own in every)]
    if not apart:
        return None
    header = ("setting", *(f"{title(group.env)}: {group.variant}" for group in groups))
    rows = [[words(n), *(words(shown(own[n])) for own in every)] for n in apart]
    caption = "Where the groups differ, the seed and the folder aside. All else is equal."
    return Table("settings", "", caption, header, rows, names=len(header))


def corrections_table() -> Table:
    """Where the paper's own numbers disagree."""
    rows = [[words(text) for text in correction] for correction in CORRECTIONS]
    caption = "Where the paper's printed numbers disagree with one another, and what is done here."
    header = ("place", "printed", "here", "why")
    return Table("corrections", "", caption, header, rows, names=len(header))
