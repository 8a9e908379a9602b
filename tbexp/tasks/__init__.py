"""Datasets in ThinkingBox format: from files to hydrated tasks, strictly.

Decided here: which tests a dataset has, what each inherits from agent, scenario and fixtures, how they are selected by
name, which of them are the public benchmark's, and what two sets of them share. Left to others: running servers,
conversations and checks.
"""

from tbexp.tasks.benchmark import benchmark_uids, is_benchmark, is_benchmark_query, refuse_benchmark
from tbexp.tasks.dump import dump_tests
from tbexp.tasks.loader import load_tasks
from tbexp.tasks.overlap import Overlap, overlap
from tbexp.tasks.records import (
    UNLIMITED,
    Agent,
    Scenario,
    Tags,
    Task,
    ToolDef,
    ToolOverride,
    Unhydrated,
    merged,
    servers_needed,
)
from tbexp.tasks.selectors import Selector, read_selectors, right_selectors, write_selectors

__all__ = [
    "UNLIMITED",
    "Agent",
    "Overlap",
    "Scenario",
    "Selector",
    "Tags",
    "Task",
    "ToolDef",
    "ToolOverride",
    "Unhydrated",
    "benchmark_uids",
    "dump_tests",
    "is_benchmark",
    "is_benchmark_query",
    "load_tasks",
    "merged",
    "overlap",
    "read_selectors",
    "refuse_benchmark",
    "right_selectors",
    "servers_needed",
    "write_selectors",
]
