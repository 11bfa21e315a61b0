"""Speed of the engine beside the naive loop, as JSON: `python benchmarks/engine.py [cpu|cuda] [case ...]`."""

import json
import sys

from fedproof.ensemble.bench import bench

if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    print(json.dumps({"rows": bench(device, sys.argv[2:] or None)}, indent=1))
