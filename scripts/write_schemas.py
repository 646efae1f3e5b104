"""Writes schemas/ from the models."""

import json
from pathlib import Path

from evaluator.wire.outputs.schemas import schemas

DIRECTORY = Path(__file__).parent.parent / "schemas"


def rendered() -> dict[str, str]:
    """The text of every file, by its name."""
    return {
        f"{name}.json": json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        for name, document in schemas().items()
    }


if __name__ == "__main__":
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (DIRECTORY / name).write_text(text, "utf-8")
    print(f"wrote {DIRECTORY}")
