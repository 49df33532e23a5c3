"""Reports: what a page of one environment shows, its foot, LaTeX tables, and whole labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther.config import replace
from lookfurther.evaluation.results import Evaluation, EvaluationConditions, ReturnCurve
from lookfurther.presets import preset
from lookfurther.report import comparison, figures, write_report
from lookfurther.report.figure_style import assign_line_styles
from lookfurther.report.latex import escape_latex, table_to_latex
from lookfurther.report.runs import RunData, RunGroup, group_runs
from lookfurther.report.score_columns import build_columns
from lookfurther.report.table import ReportTable, number_cell, text_cell
from tests.report_runs import make_evaluation, make_rows, make_run, write_run_folder

ENV = "CartPole-v1"
VERSIONS = {"commit": "abc123", "platform": "Linux-6", "machine": "riscv64", "torch": "2.99"}
# What belongs to Atari or to the paper's comparison with it.
ATARI_WORDS = (
    r"(?i)frames|human|atari|no-op|sticky|rainbow|dqfd \(deeper\)|corrections to the paper"
)


def make_variants(names: list[str], has_expert: bool = True) -> list[RunData]:
    """Two evaluated seeds of CartPole for each name."""
    runs = []
    for growth, name in enumerate(names, 1):
        for seed in range(2):
            config = replace(preset("no-demos", env=ENV), preset=name, run__seed=seed)
            best = {"agent": ReturnCurve.from_rewards(np.ones(60))}
            if has_expert:
                best["expert"] = ReturnCurve.from_rewards(np.ones(40))
            scores = np.array([growth, growth + seed], np.float64)
            evaluation = Evaluation(EvaluationConditions(ENV), scores, np.array([60, 60]), best)
            runs.append(make_run(config, make_rows(growth), evaluation))
    return runs


def write_page(runs: list[RunData], folder: Path) -> str:
    for i, run in enumerate(runs):
        write_run_folder(run, folder / "runs" / str(i))
    return write_report([folder / "runs"], folder / "report").read_text()


def visible_text(page: str) -> str:
    return re.sub(r"<style>.*?</style>|<!--.*?-->|<[^>]*>", " ", page, flags=re.S)


def test_cartpole_page_shows_nothing_of_atari(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions at the foot are those of the runs, which name no emulator here."""
    runs = make_variants(["no-demos", "mine"])
    text = visible_text(write_page(runs, tmp_path))
    text = text[: text.index("Trained with") if "Trained with" in text else None]
    assert re.findall(ATARI_WORDS, text) == []
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert not [n for n in names if re.search("frames|human|noop|corrections", n)]
    assert {"scores_evaluated.csv", "scores_evaluated.tex", "comparison.pdf"} <= names
    assert "scores_training.csv" not in names  # every run is evaluated


def test_foot_shows_date_commit_machine_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    config = preset("no-demos", env=ENV)
    runs = [
        RunData(Path("a"), replace(config, run__seed=seed), make_rows(1), {}, VERSIONS | more)
        for seed, more in enumerate(({}, {"torch": "<i>3</i>"}))
    ]
    page = write_page(runs, tmp_path)
    foot = visible_text(page[page.index("<footer>") :])
    assert "2023-11-14 22:13 UTC" in foot
    for name, value in VERSIONS.items():
        assert f"{name} {value}" in foot
    assert "2.99, &lt;i&gt;3&lt;/i&gt;" in foot
    assert "<i>" not in page


def test_runs_of_different_length_are_noted(tmp_path: Path) -> None:
    """They are one group, and the reader is warned."""
    config = preset("no-demos", env=ENV)
    short = make_run(replace(config, run__steps=200), make_rows(1, 2))
    long = make_run(replace(config, run__seed=1, run__device="cpu"), make_rows(1, 9))
    text = visible_text(write_page([short, long], tmp_path))
    assert "its runs have 200 to 900 steps" in text
    assert "its runs are on different devices (auto, cpu)" in text


# LaTeX


def test_latex_table_is_escaped_booktabs() -> None:
    rows = [[text_cell(r"\input{x} & 5 %_$^~#"), number_cell(3.0, "[1.00, 5.00]", is_best=True)]]
    rows.append([text_cell("[b]"), number_cell(None)])
    latex = table_to_latex(ReportTable("t", "Title", "", ("name", "score, ε"), rows))
    assert latex.splitlines()[1:] == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"name & score, $\varepsilon$ \\",
        r"\midrule",
        r"\textbackslash{}input\{x\} \& 5 \%\_\$\textasciicircum{}\textasciitilde{}\#"
        r" & \textbf{3.00} {\footnotesize [1.00, 5.00]} \\",
        r"{[b]} & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_latex_escape_leaves_no_active_character() -> None:
    """Outside the commands that it writes itself, no character with a meaning is left."""
    escaped = escape_latex("".join(map(chr, range(32, 127))))
    commands = r"\\text(backslash|asciicircum|asciitilde|less|greater|bar)\{\}|\\[{}$&#%_]"
    assert not set(re.sub(commands, "", escaped)) & set("\\{}$&#%_^~<>|")


def test_latex_tables_of_report_are_well_formed(tmp_path: Path) -> None:
    """Every row has the cells of the alignment, braces match, and only known commands occur."""
    write_page(make_variants(["50 % & more_{x}", "a\\b | #1"]), tmp_path)
    tables = sorted((tmp_path / "report").rglob("*.tex"))
    assert len(tables) >= 2
    commands = {"begin", "end", "toprule", "midrule", "bottomrule", "textbf", "footnotesize"}
    commands |= {"textbackslash", "textbar", "textasciitilde", "textasciicircum", "dots", "times"}
    commands |= {"textless", "textgreater", "varepsilon"}
    for path in tables:
        comment, begin, *lines, end = path.read_text().splitlines()
        assert comment.startswith("% ")
        assert end == r"\end{tabular}"
        (alignment,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", begin)
        for line in (line for line in lines if not re.fullmatch(r"\\\w+rule", line)):
            assert line.endswith(r" \\")
            plain = re.sub(r"\\[\\{}$&#%_]", "", line)  # without escaped characters
            assert plain.count("&") == len(alignment) - 1, line
            assert plain.count("{") == plain.count("}")
            assert plain.count("$") % 2 == 0
            assert not set(plain) & set("%#_^~<>|")
            assert set(re.findall(r"\\(\w+)", plain)) <= commands, line
            assert plain.isascii(), line


# Figures


def legend_names(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("has_expert", [True, False])
def test_legend_names_expert_if_it_has_a_curve(has_expert: bool) -> None:
    groups = group_runs(make_variants(["no-demos"], has_expert))
    figure = figures.plot_imitation(groups, assign_line_styles(["no-demos"]))
    assert figure is not None
    assert legend_names(figure) == ["no-demos", *["expert"] * has_expert]


def is_clipped(figure: Any) -> bool:
    """Whether a part of what is drawn is outside the figure, by more than a hundredth inch."""
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    return min(box.x0, box.y0, width - box.x1, height - box.y1) < -0.01


def all_figures(groups: list[RunGroup]) -> dict[str, Any]:
    columns = build_columns(groups, "noop")
    styles = assign_line_styles([g.variant for g in groups] + [c.label for c in columns])
    return {
        "curves": figures.plot_return_curves(groups, styles, "step"),
        "training": figures.plot_training_metrics(groups, styles),
        "imitation": figures.plot_imitation(groups, styles),
        "comparison": comparison.plot_scores(columns, styles),
        "improvement": comparison.plot_improvement(columns, columns[0], styles),
        "profile": comparison.plot_performance_profile(columns, styles),
    }


def test_labels_are_not_clipped() -> None:
    """Names of 8, 70 and 160 characters, and an environment with a long id, in every figure.

    Two environments without a common scale have no profile.
    """
    names = ["no-demos", " ".join(["seventy"] * 9), "x" * 20 + " long" * 28]
    runs = make_variants(names)
    long_env = "some-namespace/EnvironmentWithAnExtraordinarilyLongName-WithOptions-v0"
    other = replace(preset("no-demos", env=long_env), preset=names[1])
    runs.append(make_run(other, make_rows(3), make_evaluation(long_env, 30_000)))
    for name, figure in all_figures(group_runs(runs)).items():
        assert figure is None or not is_clipped(figure), name
