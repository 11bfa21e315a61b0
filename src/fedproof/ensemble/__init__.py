"""Many replicas at once, in parts that survive a crash."""
