"""Writes schemas/ from the models."""

from pathlib import Path

from evaluator.wire.outputs.schemas import write_schemas

DIRECTORY = Path(__file__).parent.parent / "schemas"

if __name__ == "__main__":
    write_schemas(DIRECTORY)
    print(f"wrote {DIRECTORY}")
