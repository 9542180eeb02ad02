"""What people look at: coloured terminal text, tables, pictures and a self-contained HTML report."""

from decoder.report.tables import comparison, markdown_table, metrics, terminal_table
from decoder.report.terminal import coloured, legend, styled, visible, wants_colour

__all__ = [
    "coloured",
    "comparison",
    "legend",
    "markdown_table",
    "metrics",
    "styled",
    "terminal_table",
    "visible",
    "wants_colour",
]
