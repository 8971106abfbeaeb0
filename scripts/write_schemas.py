"""Writes the JSON Schemas of the files people write or read by hand into ``docs/``."""

from pathlib import Path

from layertracer.files import write_json
from layertracer.plan import FreezePlan

DOCS = Path(__file__).parent.parent / "docs"
SCHEMAS = {"plan.schema.json": FreezePlan}


def main() -> None:
    """Write every schema."""
    for name, model in SCHEMAS.items():
        write_json(DOCS / name, model.model_json_schema())


if __name__ == "__main__":
    main()
