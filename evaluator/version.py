"""The version of the package, and how its extras are installed."""

__version__ = "0.1.0"


def how_to_install(extra: str) -> str:
    """The advice of an error about a missing package. The package itself is in no index."""
    return (
        f"Install the extra {extra}: `pip install '.[{extra}]'` in a clone of the project, or the "
        f"path of its wheel with [{extra}]."
    )
