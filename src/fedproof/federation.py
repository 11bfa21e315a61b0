"""A federation: which user holds which instances, and the test inputs everybody is judged by."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Users' instances in one flat array, user after user.

    User u owns rows `offsets[u]:offsets[u + 1]`, so users of unequal size cost exactly their instances.

    Attributes:
        features: `(instances, ...)`; float32, or integer token ids for text.
        labels: `(instances,)`, integers in `[0, num_classes)`.
        offsets: `(users + 1,)`, increasing, first 0 and last the number of instances.
        test_features: `(inputs, ...)`, shaped like `features`.
        test_labels: `(inputs,)`.
        class_names: one name for each class.
        name: what the data are called in reports.
        vectors: `(words, dimensions)` frozen embedding of token ids; None unless the data are text.
        test_texts: the test inputs as people read them; None unless the data are text.
    """

    features: NDArray[np.generic]
    labels: NDArray[np.int64]
    offsets: NDArray[np.int64]
    test_features: NDArray[np.generic]
    test_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    name: str
    vectors: NDArray[np.float32] | None = None
    test_texts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        sizes = np.diff(self.offsets)
        if self.offsets.ndim != 1 or len(self.offsets) < 2 or self.offsets[0] != 0 or sizes.min() < 1:
            empty = np.flatnonzero(sizes < 1)[:5].tolist()
            raise ValueError(
                f"{self.name}: every user must own at least one instance; users {empty} own none"
            )
        if not (len(self.features) == len(self.labels) == self.offsets[-1]):
            raise ValueError(
                f"{self.name}: {len(self.features)} features, {len(self.labels)} labels and offsets up to "
                f"{self.offsets[-1]} must agree"
            )
        if len(self.test_features) != len(self.test_labels):
            raise ValueError(
                f"{self.name}: {len(self.test_features)} test inputs but {len(self.test_labels)} test labels"
            )
        for labels in (self.labels, self.test_labels):
            if len(labels) and not (labels.min() >= 0 and labels.max() < self.num_classes):
                raise ValueError(
                    f"{self.name}: labels must be integers from 0 to {self.num_classes - 1}, "
                    f"found {labels.min()} to {labels.max()}"
                )

    def by_instance(self) -> "Federation":
        """The same data as if every instance had a user of its own: what is drawn, or split, at that level.

        An instance's number is its row, whatever it holds.
        """
        return replace(self, offsets=np.arange(len(self.labels) + 1))

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of instances of each user."""
        return np.diff(self.offsets)
