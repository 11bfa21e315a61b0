"""What users hold, as a figure: instances of each class for each user."""

from pathlib import Path

from fedproof.federation import Federation, class_counts
from fedproof.report.figures import new_axes, save


def draw_federation(federation: Federation, path: Path) -> Path:
    """Write a figure (.png, .pdf or .svg) of the classes that each user holds, largest user first."""
    counts = class_counts(federation)
    order = counts.sum(axis=1).argsort(kind="stable")[::-1]
    with new_axes() as axes:
        drawn = axes.imshow(counts[order].T, aspect="auto", interpolation="nearest", cmap="cividis")
        axes.grid(visible=False)
        axes.set(xlabel="users, by number of instances", ylabel="class", title=federation.name)
        axes.set_yticks(range(federation.num_classes), labels=federation.class_names)
        axes.figure.colorbar(drawn, label="instances")
        save(axes, path)
    return path
