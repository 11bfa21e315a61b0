"""A server that asks two sites for more than they give, and writes down what it is told."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedproof.integrations.flower import wait_for_nodes

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask one site for two updates, the other for an update and an evaluation, all at once."""
    first, second = sorted(wait_for_nodes(grid, 2, timeout=600.0))[:2]
    asked = [(first, "train"), (first, "train"), (second, "train"), (second, "evaluate")]
    arrays = ArrayRecord({"weight": Array(np.zeros(4, np.float32))})
    wishes = ConfigRecord({"max_epsilon": 1e9, "noise_multiplier": 0.0, "site": "/dev/null"})
    content = RecordDict({"arrays": arrays, "config": wishes})
    replies = grid.send_and_receive([Message(content, node, kind) for node, kind in asked], timeout=240.0)
    told = [
        {
            "node": "first" if reply.metadata.src_node_id == first else "second",
            "error": reply.error.reason if reply.has_error() else None,
            "content": {} if reply.has_error() else readable(reply.content),
        }
        for reply in replies
    ]
    out = Path(str(context.run_config["out"]))
    out.with_suffix(".part").write_text(json.dumps(told))
    out.with_suffix(".part").replace(out)


def readable(content: RecordDict) -> dict[str, dict[str, object]]:
    """What a reply holds, as plain values."""
    return {
        key: {
            name: value.numpy().tolist() if isinstance(value, Array) else value
            for name, value in record.items()
        }
        for key, record in content.items()
    }
