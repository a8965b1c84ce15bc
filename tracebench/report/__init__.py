"""Records in; tables, plots and a page out. Knows nothing of how records come about."""

from tracebench.report.assemble import Report, build
from tracebench.report.columns import frame
from tracebench.report.load import load_records
from tracebench.report.table import render_table, terminal_width, use_colour

__all__ = ["Report", "build", "frame", "load_records", "render_table", "terminal_width", "use_colour"]
