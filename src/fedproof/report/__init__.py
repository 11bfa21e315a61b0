"""Tables, figures and self-contained pages: what is certified, at a glance."""

from fedproof.report.comparison_charts import AttackRow, InefficacyRow, SweepRow
from fedproof.report.comparison_pages import write_attack_page, write_inefficacy_page, write_sweep_page
from fedproof.report.figures import write_charts, write_figures
from fedproof.report.run_page import write_report

__all__ = [
    "AttackRow",
    "InefficacyRow",
    "SweepRow",
    "write_attack_page",
    "write_charts",
    "write_figures",
    "write_inefficacy_page",
    "write_report",
    "write_sweep_page",
]
