"""tbexp: probe, select, train, evaluate and report for agents that are judged by the final state of a database."""

__version__ = "0.1.0"
