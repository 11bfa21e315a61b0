"""A node: one user, who trains on its own digits and sends back a model, a head or labels."""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from digits_app.data import encode, own_data
from digits_app.model import HEADS, predict, ridge, to_record, train
from fedproof.integrations.flower import answer_partition, replicas_mod, upload_reply
from fedproof.mechanisms import Local
from fedproof.mechanisms.uploads import Rows

app = ClientApp(mods=[replicas_mod])
app.query()(answer_partition)


@app.train()
def answer(message: Message, context: Context) -> Message:
    """What the server asks for, from the node's own data alone; settings come with the message."""
    config = message.content["config"]
    pixels, labels = own_data(context, str(config["data"]))
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    if "upload" in config:  # once: the labels of public images, or a head
        features, classes = encode(pixels), int(config["classes"])
        if config["upload"] == "anchors":
            own = HEADS[int(context.node_config["partition-id"]) % len(HEADS)]  # whatever a node likes best
            weight, bias = own(features, labels, classes)
            return upload_reply(message, predict(weight, bias, encode(arrays["public"])))
        rows = Rows(features=features.shape[1], classes=classes)
        seen = rows.weights(features, None)  # as it will be used
        return upload_reply(
            message, ridge(seen, labels, classes)[0].T, local=own_noise(message, context, rows)
        )
    weight, bias = arrays["fc0.weight"], arrays["fc0.bias"]
    if config["fit"] == "ridge":
        weight, bias = ridge(encode(pixels), labels, len(bias))
    else:
        epochs, rate = int(config["local-epochs"]), float(config["learning-rate"])
        weight, bias = train(weight, bias, pixels, labels, epochs=epochs, learning_rate=rate)
    return Message(RecordDict({"arrays": to_record(weight, bias)}), reply_to=message)


def own_noise(message: Message, context: Context, rows: Rows) -> Local | None:
    """The noise that the node's operator has decided on (`--node-config 'local-noise=0.2'`).

    A simulated node has no operator, and does as it is told. Of any other noise than the server counts on
    nothing is sent.
    """
    told = message.content["config"].get("noise-multiplier")
    if told is None:  # the server adds it
        return None
    noise = context.node_config["local-noise"] if "data" in context.node_config else told
    return Local(upload=rows, noise_multiplier=float(noise), honest=1)
