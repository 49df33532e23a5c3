"""Report tables as LaTeX, for a paper: a booktabs tabular to \\input into a table."""

from __future__ import annotations

from collections.abc import Sequence

from lookfurther.report.table import ReportTable, TableCell

# Characters with a meaning in LaTeX, and those that its text fonts lack.
LATEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "ε": r"$\varepsilon$",
        "×": r"$\times$",
        "−": "$-$",
        "–": "--",
        "…": r"\dots{}",
    }
)


def escape_latex(text: str) -> str:
    """Escape text so that LaTeX prints it and interprets none of it."""
    return text.translate(LATEX_ESCAPES)


def table_to_latex(table: ReportTable) -> str:
    """A tabular with the texts of the page; intervals are small, the best of a row is bold."""
    columns = len(table.header)
    alignment = "l" * table.text_columns + "r" * (columns - table.text_columns)
    lines = [
        f"% {table.title or table.name}. Needs \\usepackage{{booktabs}}.",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _latex_row([escape_latex(text) for text in table.header]),
        r"\midrule",
        *(_latex_row([_latex_cell(cell) for cell in row]) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    # \\ would read a [ at the start of the next row as its argument.
    return " & ".join(f"{{{cell}}}" if cell.startswith("[") else cell for cell in cells) + r" \\"


def _latex_cell(cell: TableCell) -> str:
    text = escape_latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.is_best else text
    return rf"{text} {{\footnotesize {escape_latex(cell.note)}}}" if cell.note else text
