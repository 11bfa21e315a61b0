"""A certificate for models trained with jax-privacy: python from_jax_privacy.py.

In the training program, where jax-privacy is installed:

    event = jax_privacy.accounting.dpsgd_event(noise_multiplier=3.0, iterations=100, sampling_prob=0.02)
    np.save("scores.npy", scores)  # (replicas, inputs, classes), softmax of every retrained model

Take events of DP-SGD only. The event of a matrix mechanism (`amplified_bandmf_event`) states the ε of one
unit, but its noise is correlated between steps: certify such models by their ε and δ, as at the end.
"""

import dp_accounting as dp
import numpy as np

import fedproof as fp

# What dpsgd_event(3.0, 100, sampling_prob=0.02) returns: a plain dp_accounting value.
event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(3.0)), 100)

# Stand-in for np.load("scores.npy"): 300 retrained models, 50 inputs, two classes.
generator = np.random.default_rng(0)
labels = generator.integers(2, size=50)
right = generator.beta(12, 1, size=(300, 50))
scores = np.where(labels[None, :, None] == np.arange(2), right[..., None], 1 - right[..., None])

threat = fp.ThreatModel(unit="instance", relation="replace")
certificate = fp.certify(scores, labels, mechanism=event, threat=threat)
print("epsilon", fp.account(event, delta=1e-5))
print("certified accuracy", [round(share, 2) for share in certificate.curve or ()])
print("sound", certificate.sound)

# Of any mechanism; jax-privacy accounts instances that are added or removed.
one_instance = fp.ApproximateDP(epsilon=0.5, delta=1e-5, relation="join")
print("from epsilon", fp.certify(scores, labels, privacy=one_instance, threat=threat, method="paper").curve)
