"""The default buckets and selection settings, and changes of them."""

from __future__ import annotations

from typing import Any

from tbexp.config.schema import Band, Bands, Buckets, SelectionConfig

KEEP = ("hard", "medium", "often")


def buckets(*, keep: tuple[str, ...] = KEEP, edges: tuple[float, ...] = (0.08, 0.4, 0.6, 0.9), **more: Any) -> Buckets:
    names = ("rarely", "hard", "medium", "often", "nearly_always")
    bands = {n: Band(upper=u, keep=n in keep) for n, u in zip(names, (*edges, None), strict=True)}
    return Buckets(name="test", bands=Bands(**bands), **more)


def selection(**more: Any) -> SelectionConfig:
    return SelectionConfig(name="test", **more)
