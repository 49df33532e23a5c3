"""Reports: one page with the results of run folders in the tables and figures of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lookfurther.errors import ConfigError
from lookfurther.report import page
from lookfurther.report.runs import find_runs, group_runs, load_run
from lookfurther.report.sections import SectionBuilder
from lookfurther.system.files import write_text

PAGE_REMARK = (
    "Only runs that learn with the same settings are averaged; intervals are 95 % percentile"
    " bootstrap intervals over seeds. Next to this page, every figure is a PNG, a PDF and an SVG"
    " file, and every table a CSV and a LaTeX file."
)


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Write the report of the runs in these folders and return the path of its page."""
    runs = [load_run(path) for path in find_runs(paths)]
    with_metrics = [run for run in runs if run.rows]
    if not with_metrics:
        raise ConfigError(f"{runs[0].path} holds no metrics yet: wait until the run writes some")
    groups = group_runs(with_metrics)
    from matplotlib import rc_context

    try:
        out.mkdir(parents=True, exist_ok=True)
        with rc_context({"text.parse_math": False}):  # names may contain dollar signs
            sections = SectionBuilder(groups, out).build_sections()
        notes = page.collect_notes(groups, [run for run in runs if not run.rows])
        header = page.make_report_header(groups, notes)
        footer = page.PageFooter(PAGE_REMARK, page.training_versions(groups))
        write_text(out / "index.html", page.render_page(header, sections, footer))
    except OSError as error:
        raise ConfigError(f"{out} cannot hold the report: {error}") from None
    return out / "index.html"
