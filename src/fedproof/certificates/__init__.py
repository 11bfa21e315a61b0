"""What a mechanism guarantees: theorems, confidence, certificates that can be checked. Free of torch."""
