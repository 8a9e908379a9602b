"""A page that opens offline: sections of text, figures and tables in one HTML file, all beside it as files too.

Decided here: how figures and tables are put into the page and next to it. What stands in them is decided by the report
of one run (`report.py`) and the comparison of several (`comparison.py`); the looks are in `report.html.j2`.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tbexp.errors import counted
from tbexp.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    uri: str
    caption: str


@dataclass(slots=True)
class Section:
    id: str
    title: str
    text: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)  # long ones, closed at first
    tables_first: bool = False  # before the pictures


# Controls of the direction of text turn round what stands behind them, and could show a verdict as another.
_DIRECTION = {
    place: f"[U+{place:04X}]" for place in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def visible(value: object) -> object:
    """A text whose controls of direction are shown and do nothing; the templates isolate what is written from right to
    left besides. What is marked as HTML stays.
    """
    return value if not isinstance(value, str) or hasattr(value, "__html__") else value.translate(_DIRECTION)


def picture(out: Path, name: str, caption: str, draw: Callable[[], Figure]) -> Picture:
    """Draws, saves as SVG and PNG, and gives the SVG to be embedded."""
    figure = draw()
    figure.savefig(out / "figures" / f"{name}.png", dpi=160)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", dpi=160, metadata={"Date": None})
    (out / "figures" / f"{name}.svg").write_bytes(buffer.getvalue())
    uri = "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
    return Picture(name, uri, caption)


def render(
    *,
    name: str,
    run: str,
    sections: Sequence[Section],
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    faults: Sequence[str] = (),
    missing: Sequence[str] = (),
    versions: Sequence[tuple[str, str]] = (),
    config: str = "",
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """The HTML page; all text is escaped. links: (address beside the page, text)."""
    from importlib.resources import files

    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=visible
    )
    environment.globals["counted"] = counted
    template = environment.from_string(files("tbexp.reporting").joinpath("report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        name=name,
        run=run,
        facts=facts,
        notes=notes,
        faults=faults,
        missing=missing,
        sections=sections,
        versions=versions,
        config=config,
        links=links,
    )
