"""What a situation at the desk is: what the user wants and knows, the records, the right steps, the wrong ones, the
outcome.

Decided here: the parts of a situation and the drawing of records from limited sets, so that each identifier and
amount can be one token of a small vocabulary. Which situations there are stands in `machines_out.py` and `money.py`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tbexp.samples.desk import DEFAULTS, TABLES, Row, State

CUSTOMERS = tuple(f"C{n}" for n in range(1, 41))
MACHINES = tuple(f"M{n}" for n in range(1, 61))
RENTALS = tuple(f"R{n}" for n in range(1, 121))
INVOICES = tuple(f"I{n}" for n in range(1, 61))
TICKETS = tuple(f"T{n}" for n in range(1, 31))
AMOUNTS = tuple(range(10, 610, 10))
KINDS = ("excavator", "loader", "lift", "roller", "mixer", "saw")
NAMES = (
    "Ada Quist", "Bo Larkin", "Cleo Marsh", "Dov Tarn", "Edda Voss", "Finn Osei", "Gita Rowe", "Hal Imber",
    "Ines Calder", "Jory Pell", "Kaia Stroud", "Lev Monk", "Mina Thole", "Nils Garrow", "Oona Bright",
    "Piet Sandal", "Rhea Dunmore", "Sten Haverly", "Tess Wilkin", "Uwe Brandt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Say:
    """A text that the user sees. The last one of a conversation ends with `<DONE>`."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    tool: str
    arguments: Mapping[str, Any]


Step = Say | Call
Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """One generated task.

    shape: its kind; facts aside, situations of one shape are alike. answers: topic -> what the user says when asked
    about it; asks: whether the request lacks what the right steps need. rows: the records at the start. expected: the
    changes of the right steps, {} where the policy forbids any. wrong: name -> the steps of one mistake, in full."""

    shape: str
    topic: str
    query: str
    answers: tuple[tuple[str, str], ...]
    who: str
    rows: Mapping[str, tuple[Row, ...]]
    expected: State
    right: Steps
    wrong: Mapping[str, Steps] = field(default_factory=dict)
    asks: bool = False

    @property
    def user_context(self) -> str:
        return "\n".join([self.who, *(f"If asked about {topic}: {answer}" for topic, answer in self.answers)])

    @property
    def refuses(self) -> bool:
        """Whether it is right only if nothing is changed."""
        return not self.expected

    def content(self) -> str:
        """What makes it the task it is: bystanders' records and names left out."""
        return json.dumps([self.shape, self.query, self.answers, self.expected], sort_keys=True)


class World:
    """Draws the records of one situation; no identifier is drawn twice."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.rows: dict[str, list[Row]] = {}
        self._taken: set[str] = set()

    def fresh(self, ids: Sequence[str]) -> str:
        """One of them that was not drawn before."""
        while (key := self.rng.choice(ids)) in self._taken:
            pass
        self._taken.add(key)
        return key

    def amount(self, low: int, high: int) -> int:
        """A multiple of 10 from low to high, both included."""
        return self.rng.randrange(low, high + 1, 10)

    def add(self, table: str, key: str, **fields: Any) -> str:
        self.rows.setdefault(table, []).append({"id": key, **fields})
        return key

    def customer(self, account: str | None = None) -> str:
        account = account or self.rng.choice(("private", "site"))
        return self.add("customers", self.fresh(CUSTOMERS), name=self.fresh(NAMES), account=account)

    def machine(self, size: str | None = None, *, status: str = "free", rate: int | None = None) -> str:
        size = size or self.rng.choice(("small", "medium", "large"))
        rate = rate if rate is not None else self.amount(50, 300)
        kind = self.rng.choice(KINDS)
        return self.add("machines", self.fresh(MACHINES), kind=kind, size=size, rate=rate, status=status)

    def rental(self, customer: str, *, size: str | None = None, **fields: Any) -> str:
        """A rental with its machine, open unless `status` says otherwise."""
        machine = self.machine(size, status="free" if fields.get("status") == "closed" else "out")
        row: Row = {"customer": customer, "machine": machine, "days": self.rng.randrange(3, 21)}
        return self.add("rentals", self.fresh(RENTALS), **row, **{"paid": self.amount(200, 600), **fields})

    def row(self, table: str, key: str) -> Row:
        return next(row for row in self.rows[table] if row["id"] == key)

    def who(self, customer: str) -> str:
        """The user context's first line."""
        return f"You are {self.row('customers', customer)['name']}, customer {customer} of a rental desk."

    def bystanders(self) -> None:
        """Records of others, so that a wrong identifier hits something."""
        for _ in range(2):
            other = self.customer()
            rental = self.rental(other, due=self.amount(10, 150))
            self.add("deposits", rental, amount=self.amount(100, 300))
            self.add(
                "invoices", self.fresh(INVOICES), customer=other, rental=rental, amount=self.amount(50, 400), age=20
            )

    def frozen(self) -> dict[str, tuple[Row, ...]]:
        """The rows by table, each with the fields that differ from their defaults, in the tables' order."""
        return {
            table: tuple(
                {name: row[name] for name in TABLES[table] if name in row and not _default(table, name, row[name])}
                for row in self.rows[table]
            )
            for table in TABLES
            if table in self.rows
        }


def _default(table: str, name: str, value: Any) -> bool:
    defaults = DEFAULTS.get(table, {})
    return name in defaults and defaults[name] == value


def merged(*changes: State) -> State:
    """The changes of several steps together."""
    out: State = {}
    for change in changes:
        for table, rows in change.items():
            for key, row in rows.items():
                out.setdefault(table, {}).setdefault(key, {}).update(row)
    return out
