"""A node that lets its secret out wherever an app can: in metrics, in its lifespan, in an evaluation."""

from collections.abc import Iterator

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedproof.integrations.flower import SiteApp

SECRET = "diagnosis-of-patient-7"

app = SiteApp()


@app.lifespan()
def lifespan(context: Context) -> Iterator[None]:
    """Fail when all is done: outside of a site, the server would get the text instead of a reply."""
    yield
    raise ValueError(SECRET)


@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """A model that has moved, and what nobody may know."""
    arrays = {name: Array(array.numpy() + np.float32(3)) for name, array in message.content["arrays"].items()}
    told = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({SECRET: 7.0})})
    return Message(told, reply_to=message)
