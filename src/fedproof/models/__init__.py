"""Ordinary modules that stack well."""
