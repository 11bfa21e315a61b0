"""Doctests of an integration are collected only where its framework is installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/fedproof/integrations/flower/*"]
