"""Stand-in for your own pipeline: class confidences of 1000 retrained models, and the labels.

Usage: python examples/make_scores.py scores.npy labels.npy
"""

import sys

import numpy as np

if len(sys.argv) != 3:
    sys.exit("usage: python examples/make_scores.py scores.npy labels.npy")
generator = np.random.default_rng(0)
replicas, inputs, classes = 1000, 200, 10
labels = generator.integers(0, classes, inputs)
evidence = generator.normal(0, 1, (replicas, inputs, classes)) + generator.normal(0, 1, (inputs, classes))
evidence[:, np.arange(inputs), labels] += 6
scores = np.exp(evidence) / np.exp(evidence).sum(axis=2, keepdims=True)

np.save(sys.argv[1], scores.astype(np.float32))
np.save(sys.argv[2], labels)
