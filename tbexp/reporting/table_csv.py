"""A table as CSV: numbers as a program reads them.

Decided here: which columns a table's CSV has. What stands in them is decided where the table is made.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from tbexp.reporting.tables import DASH, Cell, Table


def write_csv(table: Table, folder: Path) -> None:
    """Numbers as a program reads them; a note's figures (low, high, derived) in columns of their own, which take the
    place of a text that only says the same.
    """
    parts: list[tuple[bool, list[str]]] = []  # of each column whether it has one, and the further ones of its cells
    for place in range(len(table.columns)):
        cells = [row[place] for row in table.rows]
        found = list(dict.fromkeys(name for cell in cells for name, _ in cell.more))
        found += ["note"] if any(cell.note and not cell.more for cell in cells) else []
        own = not found or any(
            cell.named or (cell.text != DASH and (cell.value is not None or not cell.more)) for cell in cells
        )
        parts.append((own, found))
    with (folder / f"{table.name}.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(
            each
            for column, (own, names) in zip(table.columns, parts, strict=True)
            for each in (*([column] if own else []), *(f"{column}, {name}" for name in names))
        )
        for row in table.rows:
            line: list[Any] = []
            for cell, (own, names) in zip(row, parts, strict=True):
                told = {"note": cell.note} if cell.note and not cell.more else {}
                told |= {name: plain_number(value) for name, value in cell.more}
                line += [*([plain(cell)] if own else []), *(told.get(name, "") for name in names)]
            writer.writerow(line)


def plain(cell: Cell) -> str:
    """A cell's text for a program: a number without separators and signs of people, nothing where none is known."""
    if cell.value is not None:
        return plain_number(cell.value)
    text = cell.full or cell.text
    if re.fullmatch(r"[+−-]?\d{1,3}(,\d{3})*(\.\d+)?|[+−-]?\d+(\.\d+)?", text):
        return text.replace(",", "").replace("−", "-").lstrip("+")
    return {DASH: "", "∞": "inf"}.get(text, text)


def plain_number(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.10g}"
