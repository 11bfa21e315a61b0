"""Tables, figures and self-contained pages: what is certified, at a glance."""

from fedproof.report.certificate_page import (
    InefficacyRow,
    certificate_charts,
    certificate_in,
    inefficacy_chart,
    inefficacy_rows,
    write_certificate_page,
    write_certificate_report,
    write_inefficacy_page,
)
from fedproof.report.chart import draw_federation, write_charts
from fedproof.report.comparisons import attack_charts, compare_charts, write_attack_page, write_compare_page
from fedproof.report.run_charts import write_figures
from fedproof.report.run_page import write_report
from fedproof.report.sweep_page import sweep_chart, write_sweep_page

__all__ = [
    "InefficacyRow",
    "attack_charts",
    "certificate_charts",
    "certificate_in",
    "compare_charts",
    "draw_federation",
    "inefficacy_chart",
    "inefficacy_rows",
    "sweep_chart",
    "write_attack_page",
    "write_certificate_page",
    "write_certificate_report",
    "write_charts",
    "write_compare_page",
    "write_figures",
    "write_inefficacy_page",
    "write_report",
    "write_sweep_page",
]
