"""Tables, figures and self-contained pages: what is certified, at a glance."""

from fedproof.report.attack_page import (
    attack_charts,
    inefficacy_chart,
    write_attack_page,
    write_inefficacy_page,
)
from fedproof.report.certificate_page import (
    certificate_charts,
    certificate_in,
    write_certificate_page,
    write_certificate_report,
)
from fedproof.report.chart import draw_federation, write_charts
from fedproof.report.comparisons import compare_charts, sweep_chart, write_compare_page, write_sweep_page
from fedproof.report.run_data import write_figures
from fedproof.report.run_page import write_report

__all__ = [
    "attack_charts",
    "certificate_charts",
    "certificate_in",
    "compare_charts",
    "draw_federation",
    "inefficacy_chart",
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
