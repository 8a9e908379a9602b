"""!
scenario: allotment
max_user_sim_turns: 3
max_agent_sim_turns: 8
"""

from __future__ import annotations

import os
from pathlib import Path


def changed(x):
    """The beds that are not as they were, in an environment that holds no key."""
    assert not x.effects["garden"]["sees_key"], "the server was given the key"
    assert "GARDEN_KEY" not in os.environ and not list(Path("/proc").glob("*/environ")), "the check can see keys"
    return x.effects["garden"]["changed"]


def test_beans(x, judge):
    """!
    query: Sow 3 rows of beans in bed B1.
    tags: ["domain:sowing"]
    """
    assert changed(x) == {"B1": {"plant": "beans", "rows": 3}}


def test_peas(x, judge):
    """!
    query: Sow 2 rows of peas in bed B2.
    tags: ["domain:sowing"]
    """
    assert changed(x) == {"B2": {"plant": "peas", "rows": 2}}


def test_kale(x, judge):
    """!
    query: Sow 5 rows of kale in bed B3.
    tags: ["domain:sowing"]
    """
    assert changed(x) == {"B3": {"plant": "kale", "rows": 5}}


def test_leeks(x, judge):
    """!
    query: Sow leeks in bed B1.
    user_context: |-
      You rent bed B1.
      If asked about rows: 4 rows.
    tags: ["domain:asking"]
    """
    assert changed(x) == {"B1": {"plant": "leeks", "rows": 4}}


def test_mint(x, judge):
    """!
    query: Sow 1 rows of mint in bed B2.
    tags: ["domain:sowing"]
    """
    assert changed(x) == {"B2": {"plant": "mint", "rows": 1}}


def test_figs(x, judge):
    """!
    query: Sow 9 rows of figs in bed B3.
    tags: ["domain:sowing"]
    """
    assert changed(x) == {"B3": {"plant": "figs", "rows": 9}}


def test_water(x, judge):
    """!
    query: Water bed B2 with 6 litres.
    tags: ["domain:watering"]
    """
    assert changed(x) == {"B2": {"litres": 6}}


def test_melons(x, judge):
    """!
    query: Sow 2 rows of melons in bed B4.
    tags: ["domain:refusing"]
    """
    assert changed(x) == {}
