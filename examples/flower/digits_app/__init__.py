"""Softmax regression on digits 0 and 1, trained by DP-FedAvg over Flower."""
