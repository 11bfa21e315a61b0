"""The paper's figures and tables: what is trained, the rows that come of it, the page made of them."""

from fedproof.reproduction.page import write_page
from fedproof.reproduction.rows import Rows
from fedproof.reproduction.run import reproduce
from fedproof.reproduction.study import Study, load_studies

__all__ = ["Rows", "Study", "load_studies", "reproduce", "write_page"]
