"""What a mechanism costs: events, Rényi curves, loss distributions, trade-off curves. Free of torch."""
