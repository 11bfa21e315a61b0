"""Digits among users that do not trust each other: one app, and a server for each way to a certificate."""
