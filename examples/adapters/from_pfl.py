"""A certificate for models trained with pfl-research: python from_pfl.py.

In the training program, where pfl is installed:

    accountant = PLDPrivacyAccountant(num_compositions=20, sampling_probability=0.05, mechanism="gaussian",
                                      noise_parameter=..., delta=1e-5)
    np.save("scores.npy", scores)  # (replicas, inputs, classes), softmax of every retrained model

pfl accounts Poisson sampling, but its samplers draw with replacement (`random`) or in a fixed order
(`minimize_reuse`). The certificate says so: it is heuristic until a Poisson sampler is brought.
"""

import numpy as np

import fedproof as fp
from fedproof.integrations.adapters import pfl_mechanism

numbers = {"noise_parameter": 4.0, "num_compositions": 20, "sampling_probability": 0.05}

# Stand-in for np.load("scores.npy"): 300 retrained models, 50 inputs, two classes.
generator = np.random.default_rng(0)
labels = generator.integers(2, size=50)
right = generator.beta(12, 1, size=(300, 50))
scores = np.where(labels[None, :, None] == np.arange(2), right[..., None], 1 - right[..., None])

for sampler in ("random", "poisson"):
    mechanism = pfl_mechanism(**numbers, sampler=sampler)
    certificate = fp.certify(scores, labels, mechanism=mechanism, threat=fp.ThreatModel())
    print("epsilon", fp.account(mechanism, delta=1e-5))
    print("certified accuracy", [round(share, 2) for share in certificate.curve or ()])
    print("sound", certificate.sound, *(one.sentence for one in certificate.unmet))
