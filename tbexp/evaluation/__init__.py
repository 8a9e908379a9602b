"""Evaluation: from attempts to figures that say how often, how reliably, how surely and at what cost tasks are
solved.

Decided here: the metrics, their intervals, what coverage a headline figure needs, costs, and the comparison of two
policies. Left to others: how attempts are made (episode) and kept (attempts), and how figures look (reporting).
"""

from tbexp.evaluation.aggregate import tb_agg
from tbexp.evaluation.compare import Change, Pairing, TaskCounts, holm, mcnemar_exact, pair, paired_difference
from tbexp.evaluation.cost import cost_of
from tbexp.evaluation.metrics import pass_at_k, pass_power_k, plug_in_pass_power_k
from tbexp.evaluation.published import load_published, published_from_counts
from tbexp.evaluation.summary import summarise

__all__ = [
    "Change",
    "Pairing",
    "TaskCounts",
    "cost_of",
    "holm",
    "load_published",
    "mcnemar_exact",
    "pair",
    "paired_difference",
    "pass_at_k",
    "pass_power_k",
    "plug_in_pass_power_k",
    "published_from_counts",
    "summarise",
    "tb_agg",
]
