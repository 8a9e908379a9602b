"""Runs the stages of an experiment in one folder. The only room that knows all others.

Decided here: order of the stages, identity of a run and of each result, what is written about a run, and what one
sees of it.
"""

from __future__ import annotations

from tbexp.pipeline.run import run

__all__ = ["run"]
