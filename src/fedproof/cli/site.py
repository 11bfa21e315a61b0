"""`fedproof site`: what a site has spent, over all runs that it took part in."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedproof.cli.common import Json, print_json, say


def site(
    file: Annotated[Path, typer.Argument(help="The site's own file (TOML), which its node is started with.")],
    begin: Annotated[
        bool, typer.Option("--begin", help="Begin the ledger, once, before the site takes part anywhere.")
    ] = False,
    json: Json = False,
) -> None:
    """What a site has spent, and how many updates are left."""
    from fedproof.integrations import site as own
    from fedproof.report.words import rounded_up

    decided = own.load_site(file)
    ledger = own.begin(decided) if begin else own.spent(decided)
    found: dict[str, Any] = {
        "ledger": decided.ledger,
        "updates": sum(query.count for query in ledger.queries),
        "epsilon": ledger.epsilon["pld"],
        "delta": decided.delta,
        "relation": "replace",
        "max_epsilon": decided.max_epsilon,
        "updates_left": own.affordable(decided, ledger),
    }
    if json:
        print_json(found)
        return
    shown = found | {"epsilon": rounded_up(found["epsilon"])}
    say(
        "{updates} updates were sent, over all runs: ε = {epsilon} of {max_epsilon:g} at δ = {delta:g}, for "
        "the site's data replaced by any other; {updates_left} more can be sent ({ledger})".format(**shown)
    )
