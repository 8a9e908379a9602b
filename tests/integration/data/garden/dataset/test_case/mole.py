"""!
scenario: allotment
max_agent_sim_turns: 8
"""


def test_mole(x, judge):
    """!
    query: Sow 3 rows of beans in bed B1.
    init:
      garden: {mole: true}
    """
    assert x.effects["garden"]["changed"] == {}
