"""The paper's figures and tables: what is trained, the rows that come of it, the page made of them."""

from paper.page import write_page
from paper.rows import Rows
from paper.run import reproduce
from paper.study import Study, load_studies

__all__ = ["Rows", "Study", "load_studies", "reproduce", "write_page"]
