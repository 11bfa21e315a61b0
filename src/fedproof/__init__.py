"""fedproof: train federated models with differential privacy, prove how much poisoning they tolerate."""
