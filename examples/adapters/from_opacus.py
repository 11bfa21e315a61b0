"""A certificate for models trained with Opacus: python from_opacus.py.

In the training program, where Opacus is installed:

    history = privacy_engine.accountant.history  # [(noise multiplier, sample rate, steps), ...]
    np.save("scores.npy", scores)  # (replicas, inputs, classes), softmax of every retrained model
"""

import numpy as np

import fedproof as fp
from fedproof.integrations.adapters import opacus_event

history = [(4.0, 0.05, 60), (5.0, 0.05, 40)]  # the noise was raised after 60 steps
event = opacus_event(history)

# Stand-in for np.load("scores.npy"): 300 retrained models, 50 inputs, three classes.
generator = np.random.default_rng(0)
labels = generator.integers(3, size=50)
scores = generator.dirichlet(np.full(3, 0.4), size=(300, 50))
scores = 0.1 * scores + 0.9 * np.eye(3)[labels]

threat = fp.ThreatModel(unit="instance", relation="replace")  # Opacus clips the gradients of single instances
certificate = fp.certify(scores, labels, mechanism=event, threat=threat)
print("epsilon", fp.account(event, delta=1e-5))
print("certified accuracy", [round(share, 2) for share in certificate.curve or ()])
print("sound", certificate.sound)
