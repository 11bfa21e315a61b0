"""Tables, figures and one self-contained page."""

from fedproof.report.run_page import write_report

__all__ = ["write_report"]
