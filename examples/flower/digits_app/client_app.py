"""A node: one user, who trains on its own digits and sends back a model."""

from functools import cache

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from digits_app.model import CLASSES, to_record, train
from fedproof.integrations.flower import answer_partition, replicas_mod

app = ClientApp(mods=[replicas_mod])
app.query()(answer_partition)

Data = tuple[NDArray[np.float32], NDArray[np.int64]]


@app.train()
def train_on_own_data(message: Message, context: Context) -> Message:
    """A reply with the locally trained model; settings come with the message."""
    arrays, config = message.content["arrays"], message.content["config"]
    features, labels = own_data(context)
    weight, bias = train(
        arrays["fc0.weight"].numpy(),
        arrays["fc0.bias"].numpy(),
        features,
        labels,
        epochs=int(config["local-epochs"]),
        learning_rate=float(config["learning-rate"]),
    )
    return Message(RecordDict({"arrays": to_record(weight, bias)}), reply_to=message)


def own_data(context: Context) -> Data:
    """The node's own file (`--node-config 'data="user-0.npz"'`), or its share in a simulation."""
    path = context.node_config.get("data")
    if path is not None:
        with np.load(str(path), allow_pickle=False) as file:
            return file["features"], file["labels"]
    user, users = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    shares = simulated_users(users)
    return shares[user]


@cache
def simulated_users(users: int) -> list[Data]:
    """The digits, dealt out to `users` users."""
    from fedproof.data import load  # imported here: a node with a file of its own needs no scikit-learn

    federation = load("digits", classes=CLASSES, users=users)
    cuts = federation.offsets[1:-1]
    features, labels = np.split(federation.features, cuts), np.split(federation.labels, cuts)
    return [(own.astype(np.float32), labels[user]) for user, own in enumerate(features)]
