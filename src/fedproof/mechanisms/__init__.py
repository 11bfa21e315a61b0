"""Rounds of training: clip, noise, aggregate, stacked over replicas."""
