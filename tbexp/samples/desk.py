"""The rental desk: a SQLite database in memory, and what each tool does to it.

Decided here: the records, what a tool answers, and what it changes. The desk checks arguments and identifiers, never
the policy: it ends a rental without approval when told to, so that keeping the rules is the agent's business. Left to
others: the tools' schemas (tools.py), MCP (server.py), what a task wants (situation.py).

Nothing depends on time or chance: new records are numbered from 1, so two runs with the same calls end in equal states.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tbexp.samples.tools import BY_NAME, complaint

Row = dict[str, Any]
State = dict[str, dict[str, Row]]  # table -> id -> row

# `due` (what an early return pays back) and `manager` (how the site manager will decide) are learnt only through tools.
TABLES: Mapping[str, tuple[str, ...]] = {
    "customers": ("id", "name", "account"),
    "machines": ("id", "kind", "size", "rate", "status"),
    "rentals": ("id", "customer", "machine", "days", "paid", "due", "refund", "reserved", "manager", "items", "status"),
    "deposits": ("id", "amount", "refunded", "kept", "status"),
    "damages": ("id", "rental", "severity", "cost"),
    "approvals": ("id", "rental", "action", "decision", "machine", "status"),  # the rental's when it was asked for
    "invoices": ("id", "customer", "rental", "amount", "age", "refunded", "status"),
    "tickets": ("id", "customer", "topic", "urgent", "rental", "status"),
}
DEFAULTS: Mapping[str, Row] = {
    "rentals": {"due": 0, "refund": 0, "reserved": 0, "manager": "approved", "items": "", "status": "open"},
    "deposits": {"refunded": 0, "kept": 0, "status": "held"},
    "machines": {"status": "free"},
    "invoices": {"refunded": 0, "status": "paid"},
    "tickets": {"urgent": 0, "rental": None, "status": "open"},
}


_SCHEMA = "".join(f"create table {table} (id text primary key, {', '.join(cs[1:])});" for table, cs in TABLES.items())


class NotFound(Exception):
    """A record that does not exist; the agent reads it as text."""


class Desk:
    """One desk with one database."""

    def __init__(self, data: Mapping[str, Sequence[Mapping[str, Any]]]):
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(_SCHEMA)
        self._initial: State = {}
        self.load(data)

    def load(self, data: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Start anew from these rows by table; a field that is left out has its default.

        Raises ValueError on an unknown table or field.
        """
        for table in TABLES:
            self._db.execute(f"delete from {table}")
        for table, rows in data.items():
            if table not in TABLES:
                raise ValueError(f"there is no table {table}")
            for row in rows:
                self._insert(table, {**DEFAULTS.get(table, {}), **row})
        self._initial = self.state()

    def close(self) -> None:
        self._db.close()

    def state(self) -> State:
        """Every row of every table."""
        return {
            table: {row["id"]: dict(row) for row in self._db.execute(f"select * from {table} order by id")}
            for table in TABLES
        }

    def changes(self) -> State:
        """What differs from the initial state: new rows whole, changed rows by their changed fields."""
        changes: State = {}
        for table, rows in self.state().items():
            before = self._initial[table]
            for key, row in rows.items():
                old = before.get(key)
                new = row if old is None else {name: value for name, value in row.items() if value != old[name]}
                if new:
                    changes.setdefault(table, {})[key] = {k: v for k, v in new.items() if k != "id"}
        return changes

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the tool answers. Arguments that do not fit, and records that do not exist, are answered in words."""
        if name not in BY_NAME:
            return f"error: no tool {name}"
        if wrong := complaint(BY_NAME[name], arguments):
            return f"error: {wrong}"
        act: Callable[..., str] = getattr(self, name)
        try:
            return act(**arguments)
        except NotFound as problem:
            return f"error: {problem}"

    # --- looking up ---------------------------------------------------------------------------------------------------

    def get_rental(self, rental: str) -> str:
        row = self._row("rentals", rental)
        account = self._row("customers", row["customer"])["account"]
        size = self._row("machines", row["machine"])["size"]
        return (
            f"rental {rental} customer {row['customer']} account {account} machine {row['machine']} size {size} "
            f"paid {row['paid']} reserved {'yes' if row['reserved'] else 'no'} damage {self._damage(rental)[0]} "
            f"status {row['status']}"
        )

    def get_machine(self, machine: str) -> str:
        row = self._row("machines", machine)
        return f"machine {machine} {row['kind']} size {row['size']} rate {row['rate']} status {row['status']}"

    def get_customer(self, customer: str) -> str:
        row = self._row("customers", customer)
        tickets = self._rows("select * from tickets where customer = ? and status = 'open' order by id", customer)
        listed = " ".join(f"{ticket['id']} {ticket['topic']}" for ticket in tickets) or "none"
        return f"customer {customer} account {row['account']} tickets {listed}"

    def find_machines(self, size: str, max_rate: float | None = None) -> str:
        limit = float("inf") if max_rate is None else max_rate
        found = self._rows(
            "select * from machines where size = ? and rate <= ? and status = 'free' order by rate desc, id",
            size,
            limit,
        )
        return " ".join(f"machine {row['id']} rate {row['rate']}" for row in found) or "none"

    def get_deposit(self, rental: str) -> str:
        row, of = self._row("deposits", rental), self._row("rentals", rental)
        severity, cost = self._damage(rental)
        keep = row["amount"] if severity == "major" else min(int(cost), row["amount"])
        return (
            f"deposit {row['amount']} {row['status']} customer {of['customer']} rental {of['status']} "
            f"damage {severity} keep {keep} refund {row['amount'] - keep}"
        )

    def get_invoice(self, invoice: str) -> str:
        row = self._row("invoices", invoice)
        return (
            f"invoice {invoice} customer {row['customer']} amount {row['amount']} age {row['age']} "
            f"status {row['status']}"
        )

    def find_invoices(self, rental: str) -> str:
        self._row("rentals", rental)
        found = self._rows("select * from invoices where rental = ? order by age desc, id", rental)
        return " ".join(f"invoice {row['id']} amount {row['amount']} {row['status']}" for row in found) or "none"

    def quote_return(self, rental: str) -> str:
        return f"refund {self._row('rentals', rental)['due']}"

    # --- acting -------------------------------------------------------------------------------------------------------

    def ask_approval(self, rental: str, action: str) -> str:
        row = self._row("rentals", rental)
        decision, then = row["manager"], {"machine": row["machine"], "status": row["status"]}
        key = self._new("approvals", "AP", {"rental": rental, "action": action, "decision": decision, **then})
        return f"approval {key} {decision}"

    def end_rental(self, rental: str, refund: int) -> str:
        row = self._row("rentals", rental)
        self._update("rentals", rental, status="closed", refund=int(refund))
        self._update("machines", row["machine"], status="free")
        return "ok"

    def swap_machine(self, rental: str, machine: str) -> str:
        row = self._row("rentals", rental)
        self._row("machines", machine)
        self._update("machines", row["machine"], status="free")
        self._update("machines", machine, status="out")
        self._update("rentals", rental, machine=machine)
        return "ok"

    def extend_rental(self, rental: str, days: int) -> str:
        row = self._row("rentals", rental)
        self._update("rentals", rental, days=row["days"] + int(days))
        return "ok"

    def settle_deposit(self, rental: str, refund: int, keep: int) -> str:
        row = self._row("deposits", rental)
        refunded, kept = row["refunded"] + int(refund), row["kept"] + int(keep)
        self._update("deposits", rental, status="settled", refunded=refunded, kept=kept)
        return "ok"

    def report_damage(self, rental: str, severity: str, cost: float) -> str:
        self._row("rentals", rental)
        return f"report {self._new('damages', 'DM', {'rental': rental, 'severity': severity, 'cost': cost})}"

    def refund_invoice(self, invoice: str, amount: float) -> str:
        row = self._row("invoices", invoice)
        self._update("invoices", invoice, status="refunded", refunded=row["refunded"] + amount)
        return "ok"

    def void_invoice(self, invoice: str) -> str:
        self._row("invoices", invoice)
        self._update("invoices", invoice, status="void")
        return "ok"

    def open_ticket(self, customer: str, topic: str, urgent: bool, rental: str | None = None) -> str:
        self._row("customers", customer)
        if rental is not None:
            self._row("rentals", rental)
        row = {"customer": customer, "topic": topic, "urgent": int(urgent), "rental": rental, "status": "open"}
        return f"ticket {self._new('tickets', 'TK', row)}"

    def close_ticket(self, ticket: str) -> str:
        self._row("tickets", ticket)
        self._update("tickets", ticket, status="closed")
        return "ok"

    def add_items(self, rental: str, items: list[str]) -> str:
        row = self._row("rentals", rental)
        had = [item for item in row["items"].split(" ") if item]
        self._update("rentals", rental, items=" ".join(sorted({*had, *items})))
        return "ok"

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _rows(self, query: str, *values: Any) -> list[Row]:
        return [dict(row) for row in self._db.execute(query, values)]

    def _row(self, table: str, key: str) -> Row:
        found = self._rows(f"select * from {table} where id = ?", key)
        if not found:
            raise NotFound(f"no {table[:-1]} {key}")
        return found[0]

    def _damage(self, rental: str) -> tuple[str, float]:
        found = self._rows("select * from damages where rental = ? order by id desc", rental)
        return (found[0]["severity"], found[0]["cost"]) if found else ("none", 0)

    def _insert(self, table: str, row: Mapping[str, Any]) -> None:
        if set(row) != set(TABLES[table]):
            raise ValueError(f"a row of {table} needs {', '.join(TABLES[table])}, not {', '.join(row)}")
        marks = ", ".join("?" for _ in row)
        self._db.execute(f"insert into {table} ({', '.join(row)}) values ({marks})", tuple(row.values()))

    def _new(self, table: str, prefix: str, row: Mapping[str, Any]) -> str:
        taken = len(self._rows(f"select id from {table} where id like ?", f"{prefix}-%"))
        key = f"{prefix}-{taken + 1}"
        self._insert(table, {"id": key, **row})
        return key

    def _update(self, table: str, key: str, **fields: Any) -> None:
        assignments = ", ".join(f"{name} = ?" for name in fields)
        self._db.execute(f"update {table} set {assignments} where id = ?", (*fields.values(), key))
