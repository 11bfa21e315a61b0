"""Which Flower this integration was written and tested for."""

from importlib.metadata import PackageNotFoundError, version

SUPPORTED = "1.41"


def require_flower() -> None:
    """Raise ImportError, in one line with the remedy, unless flwr of the supported minor version is there."""
    remedy = "install it with: pip install 'fedproof[flower]'"
    try:
        found = version("flwr")
    except PackageNotFoundError as error:
        raise ImportError(
            f"fedproof.integrations.flower needs flwr {SUPPORTED}, found none; {remedy}"
        ) from error
    if found.split(".")[:2] != SUPPORTED.split("."):
        raise ImportError(
            f"fedproof.integrations.flower was tested with flwr {SUPPORTED}, found {found}; {remedy}"
        )
