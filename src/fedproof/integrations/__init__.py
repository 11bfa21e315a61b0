"""fedproof inside other frameworks. Importing this package imports none of them."""

from importlib.metadata import PackageNotFoundError, version

FLOWER = "1.41"  # minor version that the integration was written and tested for


def require_flower() -> None:
    """Raise ImportError, in one line with the remedy, unless flwr of the supported minor version is there.

    Stands here because nothing of `integrations.flower` can be imported before it has passed.
    """
    remedy = "install it with: pip install 'fedproof[flower]'"
    try:
        found = version("flwr")
    except PackageNotFoundError as error:
        raise ImportError(
            f"fedproof.integrations.flower needs flwr {FLOWER}, found none; {remedy}"
        ) from error
    if found.split(".")[:2] != FLOWER.split("."):
        raise ImportError(
            f"fedproof.integrations.flower was tested with flwr {FLOWER}, found {found}; {remedy}"
        )
