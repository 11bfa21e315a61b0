"""Tables, figures and self-contained pages: what is certified, at a glance."""

from fedproof.report.attack_page import attack_charts, write_attack_page
from fedproof.report.compare_page import CompareRow, compare_charts, write_compare_page
from fedproof.report.comparison_charts import (
    InefficacyRow,
    SweepRow,
    inefficacy_chart,
    inefficacy_rows,
    sweep_chart,
)
from fedproof.report.comparison_pages import write_inefficacy_page, write_sweep_page
from fedproof.report.federation import draw_federation
from fedproof.report.figures import write_charts, write_figures
from fedproof.report.run_page import write_report

__all__ = [
    "CompareRow",
    "InefficacyRow",
    "SweepRow",
    "attack_charts",
    "compare_charts",
    "draw_federation",
    "inefficacy_chart",
    "inefficacy_rows",
    "sweep_chart",
    "write_attack_page",
    "write_charts",
    "write_compare_page",
    "write_figures",
    "write_inefficacy_page",
    "write_report",
    "write_sweep_page",
]
