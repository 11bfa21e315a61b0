"""`fedproof attack`: poisoned training beside the bounds."""

from pathlib import Path
from typing import Annotated

import typer

from fedproof.cli.certificates import say_soundness
from fedproof.cli.common import Json, print_json, print_table, progress_bars, say, sizes_of
from fedproof.cli.training import Device, Set, training
from fedproof.config import load_config


def attack(
    config: Annotated[
        Path, typer.Argument(help="The experiment, a TOML file; its [attack] has the details.")
    ],
    kinds: Annotated[
        list[str] | None, typer.Option("--attack", help="Which attack; several are compared.")
    ] = None,
    adversaries: Annotated[str | None, typer.Option(help="Numbers of poisoned units, as 0:5 or 4.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write attacks.csv and attacks.html here.")] = None,
    device: Device = "cpu",
    changes: Set = None,
    json: Json = False,
) -> None:
    """Train under attack, and set what the attacks achieve beside what is certified."""
    training()
    from fedproof.report import write_attack_page
    from fedproof.robustness.evaluate import attack as run_attacks
    from fedproof.robustness.rows import document, write_rows

    loaded = load_config(config, changes or ())
    chosen = kinds or ([loaded.attack.kind] if loaded.attack.kind != "none" else [])
    if not chosen:
        raise ValueError("--attack is missing: name an attack, or set attack.kind in the configuration")
    sizes = [loaded.attack.adversaries] if adversaries is None else sizes_of(adversaries)
    with progress_bars() as progress:
        rows = run_attacks(loaded, chosen, sizes, device=device, progress=progress)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_rows(rows, out / "attacks.csv")
        write_attack_page(rows, out / "attacks.html", unit=loaded.threat.unit.value)
    if json:
        print_json(document(rows))
        return
    print_table(
        f"{rows[0].replicas} replicas; clean accuracy {rows[0].clean_accuracy:.2%}",
        ("attack", "units", "accuracy", "certified", "cost", "at least", "at most", "holds"),
        [
            (
                row.attack,
                row.adversaries,
                f"{row.accuracy:.2%}",
                _shown(row.certified_accuracy, ".2%"),
                f"{row.cost:.4f}",
                _shown(row.certified_lower, ".4f"),
                _shown(row.certified_upper, ".4f"),
                {True: "yes", False: "NO", None: "-"}[row.holds],
            )
            for row in rows
        ],
    )
    say_soundness(all(row.sound for row in rows), list(dict.fromkeys(r for row in rows for r in row.reasons)))
    if out is not None:
        say(f"the page to look at is {out / 'attacks.html'}")


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
