"""Selection: from counts of attempts to the pool that is trained on.

Decided here: posterior, band, gates and their reasons, the split, and the forecast of how much signal a pool carries.
Left to others: where counts come from (attempts), which uids are benchmark tasks and what a task's content is (tasks;
both are given by the caller), and what is done with the pool.
"""

from tbexp.selection.adaptive import StoppingRule, compare_with_full, decided
from tbexp.selection.forecast import Forecast, forecast, mixed_probability
from tbexp.selection.posterior import BANDS, Posterior, edges_of, posterior, probability_above
from tbexp.selection.prefix import Prefix, Spend, confidence_of, prefix_of, task_prefix
from tbexp.selection.select import Selection, TaskRow, content_digest, nothing_kept, read_exclusions, select, unsolved
from tbexp.selection.split import split
from tbexp.selection.write import read_tasks, write_selection

__all__ = [
    "BANDS",
    "Forecast",
    "Posterior",
    "Prefix",
    "Selection",
    "Spend",
    "StoppingRule",
    "TaskRow",
    "compare_with_full",
    "confidence_of",
    "content_digest",
    "decided",
    "edges_of",
    "forecast",
    "mixed_probability",
    "nothing_kept",
    "posterior",
    "prefix_of",
    "probability_above",
    "read_exclusions",
    "read_tasks",
    "select",
    "split",
    "task_prefix",
    "unsolved",
    "write_selection",
]
