"""Writes the Grafana dashboards of `deploy/grafana/dashboards`: `make generate`."""

import re
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from scripts.dashboards.learning import learning
from scripts.dashboards.pipeline import pipeline
from scripts.dashboards.quality import quality

FOLDER: Final = Path(__file__).parent.parent / "deploy" / "grafana" / "dashboards"


def documents() -> dict[Path, str]:
    """Every file with its content."""
    made = {"quality": quality(), "pipeline": pipeline(), "learning": learning()}
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {
        FOLDER / f"{name}.json": re.sub(r" +$", "", encoder.encode(one.build()), flags=re.MULTILINE)
        + "\n"
        for name, one in made.items()
    }


def main() -> None:
    """Writes the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in documents().items():
        path.write_text(text, "utf-8")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
