"""!
scenario: rental_desk
max_user_sim_turns: 4
max_agent_sim_turns: 12
tags: ["domain:ticket"]
"""

from __future__ import annotations

from typing import Any


def changes(x: Any) -> Any:
    """What the agent changed: table -> id -> the new row, or the changed fields of an old one."""
    return x.effects["rental_desk"]["changes"]


def test_ticket_1(x: Any, judge: Any) -> None:
    """!
    query: "I am C14. Please open a safety ticket, it can wait."
    user_context: |-
      You are Piet Sandal, customer C14 of a rental desk.
      If asked about topic: It is safety.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C14, name: Piet Sandal, account: site}
            - {id: C24, name: Uwe Brandt, account: site}
            - {id: C18, name: Finn Osei, account: site}
          machines:
            - {id: M8, kind: lift, size: small, rate: 70, status: out}
            - {id: M58, kind: mixer, size: large, rate: 90, status: out}
          rentals:
            - {id: R54, customer: C24, machine: M8, days: 19, paid: 570, due: 150}
            - {id: R87, customer: C18, machine: M58, days: 17, paid: 490, due: 140}
          deposits:
            - {id: R54, amount: 300}
            - {id: R87, amount: 100}
          invoices:
            - {id: I8, customer: C24, rental: R54, amount: 60, age: 20}
            - {id: I10, customer: C18, rental: R87, amount: 80, age: 20}
          tickets:
            - {id: T26, customer: C14, topic: damage}
    """
    assert changes(x) == {
        "tickets": {
            "TK-1": {"customer": "C14", "topic": "safety", "urgent": 0, "rental": None, "status": "open"},
        },
    }


def test_ticket_2(x: Any, judge: Any) -> None:
    """!
    query: "This is C25, I need a damage ticket, it is urgent."
    user_context: |-
      You are Piet Sandal, customer C25 of a rental desk.
      If asked about topic: It is damage.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C25, name: Piet Sandal, account: site}
            - {id: C28, name: Hal Imber, account: site}
            - {id: C19, name: Ines Calder, account: private}
          machines:
            - {id: M5, kind: lift, size: medium, rate: 100, status: out}
            - {id: M39, kind: mixer, size: small, rate: 90, status: out}
          rentals:
            - {id: R44, customer: C28, machine: M5, days: 11, paid: 450, due: 90}
            - {id: R1, customer: C19, machine: M39, days: 9, paid: 370, due: 70}
          deposits:
            - {id: R44, amount: 130}
            - {id: R1, amount: 200}
          invoices:
            - {id: I11, customer: C28, rental: R44, amount: 110, age: 20}
            - {id: I56, customer: C19, rental: R1, amount: 70, age: 20}
          tickets:
            - {id: T15, customer: C25, topic: safety}
    """
    assert changes(x) == {
        "tickets": {
            "TK-1": {"customer": "C25", "topic": "damage", "urgent": 1, "rental": None, "status": "open"},
        },
    }


def test_ticket_3(x: Any, judge: Any) -> None:
    """!
    query: "This is C17, I need a safety ticket, it is urgent."
    user_context: |-
      You are Cleo Marsh, customer C17 of a rental desk.
      If asked about topic: It is safety.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C17, name: Cleo Marsh, account: private}
            - {id: C37, name: Edda Voss, account: site}
            - {id: C4, name: Mina Thole, account: site}
          machines:
            - {id: M5, kind: saw, size: medium, rate: 80, status: out}
            - {id: M4, kind: saw, size: large, rate: 290, status: out}
          rentals:
            - {id: R60, customer: C37, machine: M5, days: 8, paid: 350, due: 130}
            - {id: R62, customer: C4, machine: M4, days: 20, paid: 210, due: 10}
          deposits:
            - {id: R60, amount: 210}
            - {id: R62, amount: 100}
          invoices:
            - {id: I32, customer: C37, rental: R60, amount: 110, age: 20}
            - {id: I34, customer: C4, rental: R62, amount: 220, age: 20}
    """
    assert changes(x) == {
        "tickets": {
            "TK-1": {"customer": "C17", "topic": "safety", "urgent": 1, "rental": None, "status": "open"},
        },
    }


def test_ticket_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "This is C35, I need a ticket, it can wait."
    user_context: |-
      You are Hal Imber, customer C35 of a rental desk.
      If asked about topic: safety.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C35, name: Hal Imber, account: private}
            - {id: C30, name: Tess Wilkin, account: site}
            - {id: C16, name: Finn Osei, account: site}
          machines:
            - {id: M16, kind: mixer, size: small, rate: 180, status: out}
            - {id: M36, kind: saw, size: large, rate: 50, status: out}
          rentals:
            - {id: R119, customer: C30, machine: M16, days: 5, paid: 540, due: 100}
            - {id: R56, customer: C16, machine: M36, days: 17, paid: 240, due: 150}
          deposits:
            - {id: R119, amount: 260}
            - {id: R56, amount: 110}
          invoices:
            - {id: I47, customer: C30, rental: R119, amount: 400, age: 20}
            - {id: I33, customer: C16, rental: R56, amount: 100, age: 20}
    """
    assert changes(x) == {
        "tickets": {
            "TK-1": {"customer": "C35", "topic": "safety", "urgent": 0, "rental": None, "status": "open"},
        },
    }


def test_ticket_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "This is C26, I need a ticket, it is urgent."
    user_context: |-
      You are Cleo Marsh, customer C26 of a rental desk.
      If asked about topic: It is billing.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C26, name: Cleo Marsh, account: private}
            - {id: C30, name: Jory Pell, account: private}
            - {id: C22, name: Finn Osei, account: private}
          machines:
            - {id: M45, kind: roller, size: medium, rate: 170, status: out}
            - {id: M59, kind: mixer, size: large, rate: 200, status: out}
          rentals:
            - {id: R72, customer: C30, machine: M45, days: 11, paid: 580, due: 150}
            - {id: R66, customer: C22, machine: M59, days: 19, paid: 350, due: 10}
          deposits:
            - {id: R72, amount: 110}
            - {id: R66, amount: 220}
          invoices:
            - {id: I47, customer: C30, rental: R72, amount: 180, age: 20}
            - {id: I6, customer: C22, rental: R66, amount: 190, age: 20}
    """
    assert changes(x) == {
        "tickets": {
            "TK-1": {"customer": "C26", "topic": "billing", "urgent": 1, "rental": None, "status": "open"},
        },
    }


def test_ticket_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "I am C13. Please open a ticket, it is urgent."
    user_context: |-
      You are Dov Tarn, customer C13 of a rental desk.
      If asked about topic: It is delivery.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C13, name: Dov Tarn, account: site}
            - {id: C14, name: Edda Voss, account: private}
            - {id: C6, name: Gita Rowe, account: private}
          machines:
            - {id: M36, kind: excavator, size: large, rate: 90, status: out}
            - {id: M57, kind: loader, size: medium, rate: 290, status: out}
          rentals:
            - {id: R91, customer: C14, machine: M36, days: 17, paid: 340, due: 20}
            - {id: R62, customer: C6, machine: M57, days: 20, paid: 360, due: 90}
          deposits:
            - {id: R91, amount: 120}
            - {id: R62, amount: 230}
          invoices:
            - {id: I43, customer: C14, rental: R91, amount: 120, age: 20}
            - {id: I58, customer: C6, rental: R62, amount: 370, age: 20}
    """
    assert changes(x) == {
        "tickets": {
            "TK-1": {"customer": "C13", "topic": "delivery", "urgent": 1, "rental": None, "status": "open"},
        },
    }


def test_ticket_again_1(x: Any, judge: Any) -> None:
    """!
    query: "This is C5, I need a billing ticket, it is urgent."
    user_context: |-
      You are Mina Thole, customer C5 of a rental desk.
      If asked about topic: It is billing.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C5, name: Mina Thole, account: site}
            - {id: C29, name: Lev Monk, account: private}
            - {id: C18, name: Bo Larkin, account: private}
          machines:
            - {id: M38, kind: loader, size: medium, rate: 200, status: out}
            - {id: M39, kind: loader, size: medium, rate: 210, status: out}
          rentals:
            - {id: R41, customer: C29, machine: M38, days: 8, paid: 330, due: 30}
            - {id: R65, customer: C18, machine: M39, days: 6, paid: 600, due: 60}
          deposits:
            - {id: R41, amount: 220}
            - {id: R65, amount: 240}
          invoices:
            - {id: I24, customer: C29, rental: R41, amount: 180, age: 20}
            - {id: I51, customer: C18, rental: R65, amount: 270, age: 20}
          tickets:
            - {id: T6, customer: C5, topic: billing}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_ticket_again_2(x: Any, judge: Any) -> None:
    """!
    query: "This is C3, I need a billing ticket, it can wait."
    user_context: |-
      You are Jory Pell, customer C3 of a rental desk.
      If asked about topic: It is billing.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C3, name: Jory Pell, account: private}
            - {id: C28, name: Gita Rowe, account: site}
            - {id: C9, name: Finn Osei, account: private}
          machines:
            - {id: M25, kind: mixer, size: medium, rate: 100, status: out}
            - {id: M49, kind: excavator, size: medium, rate: 60, status: out}
          rentals:
            - {id: R92, customer: C28, machine: M25, days: 16, paid: 490, due: 120}
            - {id: R58, customer: C9, machine: M49, days: 19, paid: 340, due: 110}
          deposits:
            - {id: R92, amount: 270}
            - {id: R58, amount: 200}
          invoices:
            - {id: I10, customer: C28, rental: R92, amount: 290, age: 20}
            - {id: I5, customer: C9, rental: R58, amount: 100, age: 20}
          tickets:
            - {id: T10, customer: C3, topic: billing}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_ticket_again_3(x: Any, judge: Any) -> None:
    """!
    query: "I am C4. Please open a billing ticket, it is urgent."
    user_context: |-
      You are Oona Bright, customer C4 of a rental desk.
      If asked about topic: It is billing.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C4, name: Oona Bright, account: private}
            - {id: C8, name: Ada Quist, account: private}
            - {id: C32, name: Piet Sandal, account: site}
          machines:
            - {id: M3, kind: saw, size: large, rate: 60, status: out}
            - {id: M10, kind: loader, size: small, rate: 290, status: out}
          rentals:
            - {id: R14, customer: C8, machine: M3, days: 4, paid: 500, due: 130}
            - {id: R36, customer: C32, machine: M10, days: 14, paid: 480, due: 80}
          deposits:
            - {id: R14, amount: 110}
            - {id: R36, amount: 110}
          invoices:
            - {id: I46, customer: C8, rental: R14, amount: 350, age: 20}
            - {id: I14, customer: C32, rental: R36, amount: 70, age: 20}
          tickets:
            - {id: T24, customer: C4, topic: billing}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_ticket_close_1(x: Any, judge: Any) -> None:
    """!
    query: "I am C34. Please close my damage ticket."
    user_context: |-
      You are Bo Larkin, customer C34 of a rental desk.
      If asked about customer number or customer: It is C34.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C34, name: Bo Larkin, account: private}
            - {id: C9, name: Edda Voss, account: site}
            - {id: C37, name: Hal Imber, account: private}
          machines:
            - {id: M9, kind: mixer, size: small, rate: 270, status: out}
            - {id: M7, kind: roller, size: small, rate: 230, status: out}
          rentals:
            - {id: R54, customer: C9, machine: M9, days: 13, paid: 520, due: 100}
            - {id: R81, customer: C37, machine: M7, days: 14, paid: 210, due: 60}
          deposits:
            - {id: R54, amount: 140}
            - {id: R81, amount: 180}
          invoices:
            - {id: I15, customer: C9, rental: R54, amount: 160, age: 20}
            - {id: I60, customer: C37, rental: R81, amount: 120, age: 20}
          tickets:
            - {id: T12, customer: C34, topic: damage}
            - {id: T27, customer: C34, topic: safety}
    """
    assert changes(x) == {
        "tickets": {
            "T12": {"status": "closed"},
        },
    }


def test_ticket_close_2(x: Any, judge: Any) -> None:
    """!
    query: "This is C24, my delivery ticket can be closed."
    user_context: |-
      You are Sten Haverly, customer C24 of a rental desk.
      If asked about customer number or customer: C24.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C24, name: Sten Haverly, account: site}
            - {id: C20, name: Tess Wilkin, account: site}
            - {id: C23, name: Jory Pell, account: private}
          machines:
            - {id: M24, kind: roller, size: small, rate: 280, status: out}
            - {id: M53, kind: lift, size: large, rate: 260, status: out}
          rentals:
            - {id: R65, customer: C20, machine: M24, days: 15, paid: 570, due: 40}
            - {id: R20, customer: C23, machine: M53, days: 15, paid: 350, due: 140}
          deposits:
            - {id: R65, amount: 290}
            - {id: R20, amount: 210}
          invoices:
            - {id: I55, customer: C20, rental: R65, amount: 190, age: 20}
            - {id: I47, customer: C23, rental: R20, amount: 90, age: 20}
          tickets:
            - {id: T27, customer: C24, topic: damage}
            - {id: T30, customer: C24, topic: delivery}
    """
    assert changes(x) == {
        "tickets": {
            "T30": {"status": "closed"},
        },
    }


def test_ticket_close_3(x: Any, judge: Any) -> None:
    """!
    query: "I am C17. Please close my delivery ticket."
    user_context: |-
      You are Dov Tarn, customer C17 of a rental desk.
      If asked about customer number or customer: C17.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C17, name: Dov Tarn, account: private}
            - {id: C11, name: Kaia Stroud, account: site}
            - {id: C12, name: Gita Rowe, account: site}
          machines:
            - {id: M9, kind: excavator, size: large, rate: 240, status: out}
            - {id: M25, kind: loader, size: large, rate: 120, status: out}
          rentals:
            - {id: R31, customer: C11, machine: M9, days: 12, paid: 390, due: 40}
            - {id: R27, customer: C12, machine: M25, days: 10, paid: 510, due: 30}
          deposits:
            - {id: R31, amount: 170}
            - {id: R27, amount: 100}
          invoices:
            - {id: I30, customer: C11, rental: R31, amount: 300, age: 20}
            - {id: I20, customer: C12, rental: R27, amount: 310, age: 20}
          tickets:
            - {id: T21, customer: C17, topic: damage}
            - {id: T28, customer: C17, topic: delivery}
    """
    assert changes(x) == {
        "tickets": {
            "T28": {"status": "closed"},
        },
    }


def test_ticket_close_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "Please close my delivery ticket."
    user_context: |-
      You are Gita Rowe, customer C30 of a rental desk.
      If asked about customer number or customer: C30.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C30, name: Gita Rowe, account: site}
            - {id: C9, name: Mina Thole, account: private}
            - {id: C37, name: Cleo Marsh, account: private}
          machines:
            - {id: M58, kind: saw, size: large, rate: 120, status: out}
            - {id: M40, kind: excavator, size: large, rate: 230, status: out}
          rentals:
            - {id: R24, customer: C9, machine: M58, days: 9, paid: 220, due: 100}
            - {id: R116, customer: C37, machine: M40, days: 17, paid: 600, due: 120}
          deposits:
            - {id: R24, amount: 280}
            - {id: R116, amount: 160}
          invoices:
            - {id: I44, customer: C9, rental: R24, amount: 250, age: 20}
            - {id: I8, customer: C37, rental: R116, amount: 400, age: 20}
          tickets:
            - {id: T13, customer: C30, topic: billing}
            - {id: T15, customer: C30, topic: delivery}
    """
    assert changes(x) == {
        "tickets": {
            "T15": {"status": "closed"},
        },
    }


def test_ticket_close_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "My delivery ticket can be closed."
    user_context: |-
      You are Ada Quist, customer C15 of a rental desk.
      If asked about customer number or customer: It is C15.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C15, name: Ada Quist, account: site}
            - {id: C37, name: Jory Pell, account: private}
            - {id: C13, name: Mina Thole, account: private}
          machines:
            - {id: M9, kind: saw, size: large, rate: 160, status: out}
            - {id: M12, kind: excavator, size: small, rate: 170, status: out}
          rentals:
            - {id: R51, customer: C37, machine: M9, days: 18, paid: 570, due: 100}
            - {id: R90, customer: C13, machine: M12, days: 19, paid: 530, due: 60}
          deposits:
            - {id: R51, amount: 150}
            - {id: R90, amount: 140}
          invoices:
            - {id: I59, customer: C37, rental: R51, amount: 270, age: 20}
            - {id: I41, customer: C13, rental: R90, amount: 180, age: 20}
          tickets:
            - {id: T21, customer: C15, topic: delivery}
            - {id: T29, customer: C15, topic: safety}
    """
    assert changes(x) == {
        "tickets": {
            "T21": {"status": "closed"},
        },
    }


def test_ticket_close_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "My billing ticket can be closed."
    user_context: |-
      You are Lev Monk, customer C28 of a rental desk.
      If asked about customer number or customer: It is C28.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C28, name: Lev Monk, account: private}
            - {id: C6, name: Rhea Dunmore, account: private}
            - {id: C5, name: Sten Haverly, account: site}
          machines:
            - {id: M20, kind: lift, size: small, rate: 260, status: out}
            - {id: M49, kind: saw, size: small, rate: 170, status: out}
          rentals:
            - {id: R45, customer: C6, machine: M20, days: 16, paid: 340, due: 30}
            - {id: R103, customer: C5, machine: M49, days: 7, paid: 270, due: 70}
          deposits:
            - {id: R45, amount: 190}
            - {id: R103, amount: 120}
          invoices:
            - {id: I8, customer: C6, rental: R45, amount: 80, age: 20}
            - {id: I37, customer: C5, rental: R103, amount: 310, age: 20}
          tickets:
            - {id: T12, customer: C28, topic: damage}
            - {id: T20, customer: C28, topic: billing}
    """
    assert changes(x) == {
        "tickets": {
            "T20": {"status": "closed"},
        },
    }
