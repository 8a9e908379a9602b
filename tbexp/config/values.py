"""What the groups of the schema are made of: their base class, and the numbers and paths that fields hold."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# Strict: neither `true` nor '8' passes for a number.
Share = Annotated[float, Field(ge=0.0, le=1.0, strict=True)]
Positive = Annotated[float, Field(gt=0.0, strict=True)]
NotNegative = Annotated[float, Field(ge=0.0, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
AtLeastOne = Annotated[int, Field(ge=1, strict=True)]
Integer = Annotated[int, Field(strict=True)]


def _iso_date(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"{text!r} is no date, such as 2026-11-01") from None


Date = Annotated[str, AfterValidator(_iso_date)]


def at_home(path: str) -> Path:
    """The path with a leading ~ or ~USER spelled out. Raises ValueError."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError("begins with a home folder that is not known; write it in full") from None


AbsolutePath = Annotated[str, AfterValidator(lambda path: str(at_home(path).absolute()))]


class Group(BaseModel):
    """A config group: frozen, and no unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False, coerce_numbers_to_str=True
    )
