"""!
scenario: rental_desk
max_user_sim_turns: 4
max_agent_sim_turns: 12
tags: ["domain:deposit"]
"""

from __future__ import annotations

from typing import Any


def changes(x: Any) -> Any:
    """What the agent changed: table -> id -> the new row, or the changed fields of an old one."""
    return x.effects["rental_desk"]["changes"]


def test_deposit_clean_1(x: Any, judge: Any) -> None:
    """!
    query: "Where is the deposit of R116?"
    user_context: |-
      You are Cleo Marsh, customer C4 of a rental desk.
      If asked about rental: It is R116.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C4, name: Cleo Marsh, account: private}
            - {id: C13, name: Bo Larkin, account: site}
            - {id: C12, name: Gita Rowe, account: private}
          machines:
            - {id: M35, kind: excavator, size: medium, rate: 300}
            - {id: M52, kind: loader, size: medium, rate: 300, status: out}
            - {id: M31, kind: mixer, size: large, rate: 60, status: out}
          rentals:
            - {id: R116, customer: C4, machine: M35, days: 14, paid: 550, status: closed}
            - {id: R104, customer: C13, machine: M52, days: 5, paid: 520, due: 60}
            - {id: R33, customer: C12, machine: M31, days: 16, paid: 380, due: 140}
          deposits:
            - {id: R116, amount: 100}
            - {id: R104, amount: 140}
            - {id: R33, amount: 190}
          invoices:
            - {id: I20, customer: C13, rental: R104, amount: 220, age: 20}
            - {id: I47, customer: C12, rental: R33, amount: 370, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R116": {"refunded": 100, "status": "settled"},
        },
    }


def test_deposit_clean_2(x: Any, judge: Any) -> None:
    """!
    query: "Please pay back the deposit of rental R88."
    user_context: |-
      You are Ines Calder, customer C18 of a rental desk.
      If asked about rental: R88.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C18, name: Ines Calder, account: private}
            - {id: C11, name: Jory Pell, account: site}
            - {id: C13, name: Mina Thole, account: site}
          machines:
            - {id: M5, kind: saw, size: large, rate: 250}
            - {id: M9, kind: lift, size: small, rate: 300, status: out}
            - {id: M14, kind: mixer, size: large, rate: 210, status: out}
          rentals:
            - {id: R88, customer: C18, machine: M5, days: 15, paid: 400, status: closed}
            - {id: R105, customer: C11, machine: M9, days: 9, paid: 590, due: 20}
            - {id: R53, customer: C13, machine: M14, days: 20, paid: 460, due: 90}
          deposits:
            - {id: R88, amount: 100}
            - {id: R105, amount: 170}
            - {id: R53, amount: 260}
          invoices:
            - {id: I32, customer: C11, rental: R105, amount: 120, age: 20}
            - {id: I3, customer: C13, rental: R53, amount: 400, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R88": {"refunded": 100, "status": "settled"},
        },
    }


def test_deposit_clean_3(x: Any, judge: Any) -> None:
    """!
    query: "Where is the deposit of R4?"
    user_context: |-
      You are Rhea Dunmore, customer C27 of a rental desk.
      If asked about rental: R4.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C27, name: Rhea Dunmore, account: private}
            - {id: C15, name: Ada Quist, account: private}
            - {id: C10, name: Lev Monk, account: private}
          machines:
            - {id: M31, kind: saw, size: medium, rate: 50}
            - {id: M42, kind: saw, size: large, rate: 200, status: out}
            - {id: M44, kind: mixer, size: medium, rate: 130, status: out}
          rentals:
            - {id: R4, customer: C27, machine: M31, days: 9, paid: 220, status: closed}
            - {id: R81, customer: C15, machine: M42, days: 10, paid: 490, due: 30}
            - {id: R53, customer: C10, machine: M44, days: 10, paid: 270, due: 70}
          deposits:
            - {id: R4, amount: 290}
            - {id: R81, amount: 210}
            - {id: R53, amount: 200}
          invoices:
            - {id: I5, customer: C15, rental: R81, amount: 50, age: 20}
            - {id: I16, customer: C10, rental: R53, amount: 270, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R4": {"refunded": 290, "status": "settled"},
        },
    }


def test_deposit_clean_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "I want my deposit."
    user_context: |-
      You are Tess Wilkin, customer C37 of a rental desk.
      If asked about rental: R3.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C37, name: Tess Wilkin, account: site}
            - {id: C31, name: Jory Pell, account: private}
            - {id: C35, name: Finn Osei, account: private}
          machines:
            - {id: M23, kind: excavator, size: large, rate: 210}
            - {id: M25, kind: loader, size: large, rate: 240, status: out}
            - {id: M39, kind: mixer, size: medium, rate: 80, status: out}
          rentals:
            - {id: R3, customer: C37, machine: M23, days: 3, paid: 230, status: closed}
            - {id: R1, customer: C31, machine: M25, days: 5, paid: 500, due: 30}
            - {id: R55, customer: C35, machine: M39, days: 19, paid: 290, due: 130}
          deposits:
            - {id: R3, amount: 100}
            - {id: R1, amount: 120}
            - {id: R55, amount: 280}
          invoices:
            - {id: I53, customer: C31, rental: R1, amount: 110, age: 20}
            - {id: I54, customer: C35, rental: R55, amount: 260, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R3": {"refunded": 100, "status": "settled"},
        },
    }


def test_deposit_clean_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "Please pay back my deposit."
    user_context: |-
      You are Jory Pell, customer C34 of a rental desk.
      If asked about rental: It is R53.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C34, name: Jory Pell, account: site}
            - {id: C32, name: Nils Garrow, account: private}
            - {id: C28, name: Rhea Dunmore, account: site}
          machines:
            - {id: M56, kind: lift, size: medium, rate: 130}
            - {id: M24, kind: excavator, size: small, rate: 70, status: out}
            - {id: M17, kind: roller, size: small, rate: 60, status: out}
          rentals:
            - {id: R53, customer: C34, machine: M56, days: 19, paid: 320, status: closed}
            - {id: R10, customer: C32, machine: M24, days: 9, paid: 480, due: 70}
            - {id: R39, customer: C28, machine: M17, days: 19, paid: 470, due: 130}
          deposits:
            - {id: R53, amount: 100}
            - {id: R10, amount: 200}
            - {id: R39, amount: 110}
          invoices:
            - {id: I26, customer: C32, rental: R10, amount: 50, age: 20}
            - {id: I52, customer: C28, rental: R39, amount: 90, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R53": {"refunded": 100, "status": "settled"},
        },
    }


def test_deposit_clean_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "Please pay back my deposit."
    user_context: |-
      You are Dov Tarn, customer C12 of a rental desk.
      If asked about rental: It is R48.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C12, name: Dov Tarn, account: site}
            - {id: C33, name: Jory Pell, account: site}
            - {id: C24, name: Uwe Brandt, account: private}
          machines:
            - {id: M3, kind: roller, size: small, rate: 230}
            - {id: M5, kind: mixer, size: small, rate: 120, status: out}
            - {id: M43, kind: mixer, size: medium, rate: 300, status: out}
          rentals:
            - {id: R48, customer: C12, machine: M3, days: 20, paid: 510, status: closed}
            - {id: R115, customer: C33, machine: M5, days: 9, paid: 590, due: 130}
            - {id: R86, customer: C24, machine: M43, days: 11, paid: 530, due: 100}
          deposits:
            - {id: R48, amount: 290}
            - {id: R115, amount: 190}
            - {id: R86, amount: 190}
          invoices:
            - {id: I15, customer: C33, rental: R115, amount: 360, age: 20}
            - {id: I14, customer: C24, rental: R86, amount: 70, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R48": {"refunded": 290, "status": "settled"},
        },
    }


def test_deposit_minor_1(x: Any, judge: Any) -> None:
    """!
    query: "Please pay back the deposit of rental R22."
    user_context: |-
      You are Ada Quist, customer C15 of a rental desk.
      If asked about rental: It is R22.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C15, name: Ada Quist, account: private}
            - {id: C36, name: Lev Monk, account: private}
            - {id: C9, name: Piet Sandal, account: site}
          machines:
            - {id: M48, kind: mixer, size: medium, rate: 290}
            - {id: M52, kind: lift, size: large, rate: 120, status: out}
            - {id: M14, kind: lift, size: large, rate: 190, status: out}
          rentals:
            - {id: R22, customer: C15, machine: M48, days: 6, paid: 590, status: closed}
            - {id: R83, customer: C36, machine: M52, days: 15, paid: 500, due: 30}
            - {id: R93, customer: C9, machine: M14, days: 8, paid: 330, due: 150}
          deposits:
            - {id: R22, amount: 250}
            - {id: R83, amount: 120}
            - {id: R93, amount: 100}
          damages:
            - {id: "DM-0", rental: R22, severity: minor, cost: 140}
          invoices:
            - {id: I16, customer: C36, rental: R83, amount: 310, age: 20}
            - {id: I2, customer: C9, rental: R93, amount: 190, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R22": {"refunded": 110, "kept": 140, "status": "settled"},
        },
    }


def test_deposit_minor_2(x: Any, judge: Any) -> None:
    """!
    query: "Please pay back the deposit of rental R89."
    user_context: |-
      You are Tess Wilkin, customer C18 of a rental desk.
      If asked about rental: R89.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C18, name: Tess Wilkin, account: site}
            - {id: C11, name: Dov Tarn, account: private}
            - {id: C1, name: Oona Bright, account: private}
          machines:
            - {id: M60, kind: loader, size: small, rate: 170}
            - {id: M14, kind: excavator, size: medium, rate: 140, status: out}
            - {id: M48, kind: roller, size: small, rate: 50, status: out}
          rentals:
            - {id: R89, customer: C18, machine: M60, days: 19, paid: 430, status: closed}
            - {id: R23, customer: C11, machine: M14, days: 14, paid: 340, due: 100}
            - {id: R55, customer: C1, machine: M48, days: 20, paid: 350, due: 40}
          deposits:
            - {id: R89, amount: 200}
            - {id: R23, amount: 250}
            - {id: R55, amount: 260}
          damages:
            - {id: "DM-0", rental: R89, severity: minor, cost: 130}
          invoices:
            - {id: I5, customer: C11, rental: R23, amount: 360, age: 20}
            - {id: I16, customer: C1, rental: R55, amount: 180, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R89": {"refunded": 70, "kept": 130, "status": "settled"},
        },
    }


def test_deposit_minor_3(x: Any, judge: Any) -> None:
    """!
    query: "Please pay back the deposit of rental R76."
    user_context: |-
      You are Sten Haverly, customer C36 of a rental desk.
      If asked about rental: R76.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C36, name: Sten Haverly, account: private}
            - {id: C30, name: Lev Monk, account: site}
            - {id: C1, name: Tess Wilkin, account: private}
          machines:
            - {id: M16, kind: saw, size: small, rate: 130}
            - {id: M58, kind: excavator, size: large, rate: 240, status: out}
            - {id: M55, kind: saw, size: medium, rate: 260, status: out}
          rentals:
            - {id: R76, customer: C36, machine: M16, days: 6, paid: 560, status: closed}
            - {id: R89, customer: C30, machine: M58, days: 16, paid: 320, due: 130}
            - {id: R80, customer: C1, machine: M55, days: 15, paid: 300, due: 30}
          deposits:
            - {id: R76, amount: 210}
            - {id: R89, amount: 140}
            - {id: R80, amount: 300}
          damages:
            - {id: "DM-0", rental: R76, severity: minor, cost: 190}
          invoices:
            - {id: I10, customer: C30, rental: R89, amount: 260, age: 20}
            - {id: I56, customer: C1, rental: R80, amount: 300, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R76": {"refunded": 20, "kept": 190, "status": "settled"},
        },
    }


def test_deposit_minor_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "Where is my deposit?"
    user_context: |-
      You are Kaia Stroud, customer C27 of a rental desk.
      If asked about rental: It is R120.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C27, name: Kaia Stroud, account: site}
            - {id: C21, name: Finn Osei, account: private}
            - {id: C38, name: Rhea Dunmore, account: private}
          machines:
            - {id: M36, kind: mixer, size: small, rate: 170}
            - {id: M1, kind: loader, size: large, rate: 130, status: out}
            - {id: M17, kind: saw, size: small, rate: 300, status: out}
          rentals:
            - {id: R120, customer: C27, machine: M36, days: 11, paid: 520, status: closed}
            - {id: R69, customer: C21, machine: M1, days: 5, paid: 580, due: 120}
            - {id: R105, customer: C38, machine: M17, days: 9, paid: 590, due: 70}
          deposits:
            - {id: R120, amount: 120}
            - {id: R69, amount: 240}
            - {id: R105, amount: 160}
          damages:
            - {id: "DM-0", rental: R120, severity: minor, cost: 60}
          invoices:
            - {id: I39, customer: C21, rental: R69, amount: 230, age: 20}
            - {id: I37, customer: C38, rental: R105, amount: 180, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R120": {"refunded": 60, "kept": 60, "status": "settled"},
        },
    }


def test_deposit_minor_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "Where is my deposit?"
    user_context: |-
      You are Bo Larkin, customer C32 of a rental desk.
      If asked about rental: R119.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C32, name: Bo Larkin, account: private}
            - {id: C8, name: Hal Imber, account: site}
            - {id: C5, name: Tess Wilkin, account: private}
          machines:
            - {id: M18, kind: lift, size: small, rate: 140}
            - {id: M57, kind: roller, size: medium, rate: 100, status: out}
            - {id: M14, kind: roller, size: small, rate: 290, status: out}
          rentals:
            - {id: R119, customer: C32, machine: M18, days: 3, paid: 230, status: closed}
            - {id: R70, customer: C8, machine: M57, days: 4, paid: 450, due: 30}
            - {id: R93, customer: C5, machine: M14, days: 15, paid: 240, due: 140}
          deposits:
            - {id: R119, amount: 300}
            - {id: R70, amount: 280}
            - {id: R93, amount: 240}
          damages:
            - {id: "DM-0", rental: R119, severity: minor, cost: 140}
          invoices:
            - {id: I3, customer: C8, rental: R70, amount: 400, age: 20}
            - {id: I11, customer: C5, rental: R93, amount: 100, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R119": {"refunded": 160, "kept": 140, "status": "settled"},
        },
    }


def test_deposit_minor_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "I want my deposit."
    user_context: |-
      You are Hal Imber, customer C13 of a rental desk.
      If asked about rental: It is R7.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C13, name: Hal Imber, account: private}
            - {id: C4, name: Oona Bright, account: site}
            - {id: C18, name: Ines Calder, account: site}
          machines:
            - {id: M8, kind: roller, size: medium, rate: 70}
            - {id: M38, kind: saw, size: medium, rate: 120, status: out}
            - {id: M58, kind: saw, size: medium, rate: 110, status: out}
          rentals:
            - {id: R7, customer: C13, machine: M8, days: 5, paid: 270, status: closed}
            - {id: R14, customer: C4, machine: M38, days: 6, paid: 470, due: 80}
            - {id: R37, customer: C18, machine: M58, days: 5, paid: 280, due: 50}
          deposits:
            - {id: R7, amount: 190}
            - {id: R14, amount: 240}
            - {id: R37, amount: 230}
          damages:
            - {id: "DM-0", rental: R7, severity: minor, cost: 150}
          invoices:
            - {id: I26, customer: C4, rental: R14, amount: 250, age: 20}
            - {id: I49, customer: C18, rental: R37, amount: 210, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R7": {"refunded": 40, "kept": 150, "status": "settled"},
        },
    }


def test_deposit_major_1(x: Any, judge: Any) -> None:
    """!
    query: "I want my deposit for rental R106."
    user_context: |-
      You are Jory Pell, customer C15 of a rental desk.
      If asked about rental: R106.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C15, name: Jory Pell, account: private}
            - {id: C36, name: Ines Calder, account: private}
            - {id: C6, name: Lev Monk, account: private}
          machines:
            - {id: M42, kind: roller, size: medium, rate: 220}
            - {id: M43, kind: saw, size: small, rate: 260, status: out}
            - {id: M24, kind: lift, size: small, rate: 270, status: out}
          rentals:
            - {id: R106, customer: C15, machine: M42, days: 8, paid: 550, status: closed}
            - {id: R27, customer: C36, machine: M43, days: 3, paid: 200, due: 40}
            - {id: R5, customer: C6, machine: M24, days: 19, paid: 250, due: 30}
          deposits:
            - {id: R106, amount: 230}
            - {id: R27, amount: 270}
            - {id: R5, amount: 250}
          damages:
            - {id: "DM-0", rental: R106, severity: major, cost: 560}
          invoices:
            - {id: I48, customer: C36, rental: R27, amount: 100, age: 20}
            - {id: I38, customer: C6, rental: R5, amount: 110, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R106": {"kept": 230, "status": "settled"},
        },
        "tickets": {
            "TK-1": {"customer": "C15", "topic": "damage", "urgent": 1, "rental": "R106", "status": "open"},
        },
    }


def test_deposit_major_2(x: Any, judge: Any) -> None:
    """!
    query: "I want my deposit for rental R76."
    user_context: |-
      You are Hal Imber, customer C29 of a rental desk.
      If asked about rental: It is R76.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C29, name: Hal Imber, account: site}
            - {id: C35, name: Mina Thole, account: private}
            - {id: C37, name: Ada Quist, account: site}
          machines:
            - {id: M42, kind: excavator, size: small, rate: 270}
            - {id: M31, kind: loader, size: medium, rate: 300, status: out}
            - {id: M19, kind: mixer, size: small, rate: 180, status: out}
          rentals:
            - {id: R76, customer: C29, machine: M42, days: 5, paid: 310, status: closed}
            - {id: R84, customer: C35, machine: M31, days: 13, paid: 490, due: 60}
            - {id: R1, customer: C37, machine: M19, days: 6, paid: 320, due: 80}
          deposits:
            - {id: R76, amount: 200}
            - {id: R84, amount: 160}
            - {id: R1, amount: 140}
          damages:
            - {id: "DM-0", rental: R76, severity: major, cost: 540}
          invoices:
            - {id: I60, customer: C35, rental: R84, amount: 100, age: 20}
            - {id: I14, customer: C37, rental: R1, amount: 180, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R76": {"kept": 200, "status": "settled"},
        },
        "tickets": {
            "TK-1": {"customer": "C29", "topic": "damage", "urgent": 1, "rental": "R76", "status": "open"},
        },
    }


def test_deposit_major_3(x: Any, judge: Any) -> None:
    """!
    query: "Please pay back the deposit of rental R85."
    user_context: |-
      You are Cleo Marsh, customer C10 of a rental desk.
      If asked about rental: It is R85.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C10, name: Cleo Marsh, account: private}
            - {id: C6, name: Nils Garrow, account: site}
            - {id: C32, name: Edda Voss, account: site}
          machines:
            - {id: M25, kind: roller, size: medium, rate: 50}
            - {id: M30, kind: mixer, size: large, rate: 70, status: out}
            - {id: M35, kind: excavator, size: small, rate: 160, status: out}
          rentals:
            - {id: R85, customer: C10, machine: M25, days: 3, paid: 220, status: closed}
            - {id: R49, customer: C6, machine: M30, days: 4, paid: 460, due: 150}
            - {id: R38, customer: C32, machine: M35, days: 20, paid: 550, due: 90}
          deposits:
            - {id: R85, amount: 280}
            - {id: R49, amount: 100}
            - {id: R38, amount: 110}
          damages:
            - {id: "DM-0", rental: R85, severity: major, cost: 510}
          invoices:
            - {id: I7, customer: C6, rental: R49, amount: 50, age: 20}
            - {id: I31, customer: C32, rental: R38, amount: 320, age: 20}
    """
    assert changes(x) == {
        "deposits": {
            "R85": {"kept": 280, "status": "settled"},
        },
        "tickets": {
            "TK-1": {"customer": "C10", "topic": "damage", "urgent": 1, "rental": "R85", "status": "open"},
        },
    }


def test_deposit_open_1(x: Any, judge: Any) -> None:
    """!
    query: "Where is the deposit of R102?"
    user_context: |-
      You are Edda Voss, customer C28 of a rental desk.
      If asked about rental: R102.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C28, name: Edda Voss, account: site}
            - {id: C10, name: Tess Wilkin, account: private}
            - {id: C20, name: Jory Pell, account: site}
          machines:
            - {id: M40, kind: excavator, size: medium, rate: 90, status: out}
            - {id: M45, kind: excavator, size: small, rate: 140, status: out}
            - {id: M29, kind: saw, size: medium, rate: 150, status: out}
          rentals:
            - {id: R102, customer: C28, machine: M40, days: 12, paid: 300}
            - {id: R111, customer: C10, machine: M45, days: 9, paid: 230, due: 80}
            - {id: R99, customer: C20, machine: M29, days: 20, paid: 340, due: 120}
          deposits:
            - {id: R102, amount: 140}
            - {id: R111, amount: 170}
            - {id: R99, amount: 170}
          invoices:
            - {id: I12, customer: C10, rental: R111, amount: 290, age: 20}
            - {id: I42, customer: C20, rental: R99, amount: 140, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_deposit_open_2(x: Any, judge: Any) -> None:
    """!
    query: "Where is the deposit of R13?"
    user_context: |-
      You are Mina Thole, customer C34 of a rental desk.
      If asked about rental: It is R13.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C34, name: Mina Thole, account: site}
            - {id: C18, name: Rhea Dunmore, account: site}
            - {id: C24, name: Dov Tarn, account: site}
          machines:
            - {id: M43, kind: saw, size: large, rate: 50, status: out}
            - {id: M14, kind: lift, size: medium, rate: 60, status: out}
            - {id: M21, kind: saw, size: small, rate: 150, status: out}
          rentals:
            - {id: R13, customer: C34, machine: M43, days: 20, paid: 570}
            - {id: R26, customer: C18, machine: M14, days: 8, paid: 210, due: 140}
            - {id: R56, customer: C24, machine: M21, days: 12, paid: 600, due: 20}
          deposits:
            - {id: R13, amount: 120}
            - {id: R26, amount: 160}
            - {id: R56, amount: 240}
          invoices:
            - {id: I9, customer: C18, rental: R26, amount: 330, age: 20}
            - {id: I11, customer: C24, rental: R56, amount: 270, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_deposit_open_3(x: Any, judge: Any) -> None:
    """!
    query: "Please pay back the deposit of rental R70."
    user_context: |-
      You are Piet Sandal, customer C39 of a rental desk.
      If asked about rental: R70.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C39, name: Piet Sandal, account: site}
            - {id: C37, name: Cleo Marsh, account: site}
            - {id: C12, name: Dov Tarn, account: private}
          machines:
            - {id: M11, kind: loader, size: small, rate: 210, status: out}
            - {id: M32, kind: mixer, size: medium, rate: 110, status: out}
            - {id: M12, kind: loader, size: small, rate: 50, status: out}
          rentals:
            - {id: R70, customer: C39, machine: M11, days: 18, paid: 210}
            - {id: R24, customer: C37, machine: M32, days: 6, paid: 400, due: 150}
            - {id: R91, customer: C12, machine: M12, days: 9, paid: 420, due: 50}
          deposits:
            - {id: R70, amount: 140}
            - {id: R24, amount: 250}
            - {id: R91, amount: 250}
          invoices:
            - {id: I14, customer: C37, rental: R24, amount: 60, age: 20}
            - {id: I56, customer: C12, rental: R91, amount: 210, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_deposit_settled_1(x: Any, judge: Any) -> None:
    """!
    query: "I want my deposit for rental R45."
    user_context: |-
      You are Edda Voss, customer C40 of a rental desk.
      If asked about rental: R45.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C40, name: Edda Voss, account: site}
            - {id: C29, name: Ada Quist, account: site}
            - {id: C9, name: Oona Bright, account: private}
          machines:
            - {id: M47, kind: loader, size: medium, rate: 240}
            - {id: M48, kind: lift, size: medium, rate: 50, status: out}
            - {id: M51, kind: excavator, size: medium, rate: 270, status: out}
          rentals:
            - {id: R45, customer: C40, machine: M47, days: 12, paid: 590, status: closed}
            - {id: R120, customer: C29, machine: M48, days: 17, paid: 380, due: 110}
            - {id: R118, customer: C9, machine: M51, days: 5, paid: 340, due: 40}
          deposits:
            - {id: R45, amount: 300, refunded: 300, status: settled}
            - {id: R120, amount: 230}
            - {id: R118, amount: 260}
          invoices:
            - {id: I13, customer: C29, rental: R120, amount: 320, age: 20}
            - {id: I49, customer: C9, rental: R118, amount: 290, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_deposit_settled_2(x: Any, judge: Any) -> None:
    """!
    query: "Where is the deposit of R66?"
    user_context: |-
      You are Sten Haverly, customer C22 of a rental desk.
      If asked about rental: R66.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C22, name: Sten Haverly, account: site}
            - {id: C8, name: Gita Rowe, account: private}
            - {id: C24, name: Oona Bright, account: site}
          machines:
            - {id: M28, kind: mixer, size: small, rate: 130}
            - {id: M47, kind: excavator, size: small, rate: 210, status: out}
            - {id: M54, kind: saw, size: medium, rate: 140, status: out}
          rentals:
            - {id: R66, customer: C22, machine: M28, days: 20, paid: 230, status: closed}
            - {id: R64, customer: C8, machine: M47, days: 14, paid: 570, due: 50}
            - {id: R78, customer: C24, machine: M54, days: 3, paid: 600, due: 130}
          deposits:
            - {id: R66, amount: 140, refunded: 140, status: settled}
            - {id: R64, amount: 160}
            - {id: R78, amount: 280}
          invoices:
            - {id: I50, customer: C8, rental: R64, amount: 90, age: 20}
            - {id: I12, customer: C24, rental: R78, amount: 350, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_deposit_settled_3(x: Any, judge: Any) -> None:
    """!
    query: "I want my deposit for rental R52."
    user_context: |-
      You are Kaia Stroud, customer C2 of a rental desk.
      If asked about rental: R52.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C2, name: Kaia Stroud, account: private}
            - {id: C37, name: Piet Sandal, account: site}
            - {id: C7, name: Rhea Dunmore, account: private}
          machines:
            - {id: M59, kind: loader, size: medium, rate: 160}
            - {id: M43, kind: lift, size: small, rate: 70, status: out}
            - {id: M53, kind: saw, size: large, rate: 120, status: out}
          rentals:
            - {id: R52, customer: C2, machine: M59, days: 12, paid: 520, status: closed}
            - {id: R3, customer: C37, machine: M43, days: 13, paid: 360, due: 120}
            - {id: R7, customer: C7, machine: M53, days: 14, paid: 450, due: 10}
          deposits:
            - {id: R52, amount: 150, refunded: 150, status: settled}
            - {id: R3, amount: 150}
            - {id: R7, amount: 210}
          invoices:
            - {id: I22, customer: C37, rental: R3, amount: 110, age: 20}
            - {id: I54, customer: C7, rental: R7, amount: 390, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"
