"""Speed, and the naive loop it is measured against; run from a checkout, never installed."""
