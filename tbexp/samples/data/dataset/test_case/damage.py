"""!
scenario: rental_desk
max_user_sim_turns: 4
max_agent_sim_turns: 12
tags: ["domain:damage"]
"""

from __future__ import annotations

from typing import Any


def changes(x: Any) -> Any:
    """What the agent changed: table -> id -> the new row, or the changed fields of an old one."""
    return x.effects["rental_desk"]["changes"]


def test_damage_minor_1(x: Any, judge: Any) -> None:
    """!
    query: "Please record minor damage on rental R120, cost 100."
    user_context: |-
      You are Ines Calder, customer C3 of a rental desk.
      If asked about cost: 100.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C3, name: Ines Calder, account: private}
            - {id: C8, name: Tess Wilkin, account: site}
            - {id: C25, name: Nils Garrow, account: private}
          machines:
            - {id: M30, kind: mixer, size: large, rate: 150, status: out}
            - {id: M48, kind: loader, size: small, rate: 260, status: out}
            - {id: M36, kind: loader, size: medium, rate: 90, status: out}
          rentals:
            - {id: R120, customer: C3, machine: M30, days: 4, paid: 490}
            - {id: R43, customer: C8, machine: M48, days: 20, paid: 430, due: 30}
            - {id: R80, customer: C25, machine: M36, days: 9, paid: 320, due: 40}
          deposits:
            - {id: R43, amount: 100}
            - {id: R80, amount: 250}
          invoices:
            - {id: I49, customer: C8, rental: R43, amount: 130, age: 20}
            - {id: I53, customer: C25, rental: R80, amount: 240, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R120", "severity": "minor", "cost": 100},
        },
    }


def test_damage_minor_2(x: Any, judge: Any) -> None:
    """!
    query: "Please record minor damage on rental R38, cost 40."
    user_context: |-
      You are Hal Imber, customer C18 of a rental desk.
      If asked about cost: 40.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C18, name: Hal Imber, account: private}
            - {id: C6, name: Piet Sandal, account: private}
            - {id: C28, name: Jory Pell, account: private}
          machines:
            - {id: M21, kind: mixer, size: large, rate: 100, status: out}
            - {id: M29, kind: lift, size: large, rate: 170, status: out}
            - {id: M37, kind: roller, size: small, rate: 280, status: out}
          rentals:
            - {id: R38, customer: C18, machine: M21, days: 3, paid: 300}
            - {id: R22, customer: C6, machine: M29, days: 6, paid: 320, due: 60}
            - {id: R52, customer: C28, machine: M37, days: 20, paid: 350, due: 100}
          deposits:
            - {id: R22, amount: 100}
            - {id: R52, amount: 110}
          invoices:
            - {id: I46, customer: C6, rental: R22, amount: 180, age: 20}
            - {id: I24, customer: C28, rental: R52, amount: 180, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R38", "severity": "minor", "cost": 40},
        },
    }


def test_damage_minor_3(x: Any, judge: Any) -> None:
    """!
    query: "Please record minor damage on rental R41, cost 150."
    user_context: |-
      You are Gita Rowe, customer C40 of a rental desk.
      If asked about cost: 150.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C40, name: Gita Rowe, account: site}
            - {id: C4, name: Dov Tarn, account: private}
            - {id: C22, name: Rhea Dunmore, account: site}
          machines:
            - {id: M17, kind: saw, size: large, rate: 170, status: out}
            - {id: M6, kind: lift, size: large, rate: 200, status: out}
            - {id: M15, kind: saw, size: large, rate: 290, status: out}
          rentals:
            - {id: R41, customer: C40, machine: M17, days: 6, paid: 510}
            - {id: R28, customer: C4, machine: M6, days: 19, paid: 280, due: 150}
            - {id: R119, customer: C22, machine: M15, days: 10, paid: 200, due: 40}
          deposits:
            - {id: R28, amount: 180}
            - {id: R119, amount: 260}
          invoices:
            - {id: I27, customer: C4, rental: R28, amount: 80, age: 20}
            - {id: I46, customer: C22, rental: R119, amount: 180, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R41", "severity": "minor", "cost": 150},
        },
    }


def test_damage_minor_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "Rental R46 has minor damage."
    user_context: |-
      You are Ada Quist, customer C33 of a rental desk.
      If asked about cost: It is 40.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C33, name: Ada Quist, account: private}
            - {id: C40, name: Tess Wilkin, account: private}
            - {id: C17, name: Uwe Brandt, account: private}
          machines:
            - {id: M46, kind: loader, size: small, rate: 90, status: out}
            - {id: M18, kind: roller, size: medium, rate: 60, status: out}
            - {id: M23, kind: excavator, size: small, rate: 50, status: out}
          rentals:
            - {id: R46, customer: C33, machine: M46, days: 10, paid: 380}
            - {id: R2, customer: C40, machine: M18, days: 4, paid: 220, due: 50}
            - {id: R120, customer: C17, machine: M23, days: 11, paid: 410, due: 90}
          deposits:
            - {id: R2, amount: 120}
            - {id: R120, amount: 210}
          invoices:
            - {id: I3, customer: C40, rental: R2, amount: 190, age: 20}
            - {id: I33, customer: C17, rental: R120, amount: 400, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R46", "severity": "minor", "cost": 40},
        },
    }


def test_damage_minor_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "Rental R81 has minor damage."
    user_context: |-
      You are Nils Garrow, customer C26 of a rental desk.
      If asked about cost: It is 60.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C26, name: Nils Garrow, account: private}
            - {id: C8, name: Kaia Stroud, account: site}
            - {id: C11, name: Oona Bright, account: private}
          machines:
            - {id: M29, kind: loader, size: small, rate: 100, status: out}
            - {id: M26, kind: mixer, size: medium, rate: 130, status: out}
            - {id: M19, kind: loader, size: large, rate: 60, status: out}
          rentals:
            - {id: R81, customer: C26, machine: M29, days: 8, paid: 590}
            - {id: R117, customer: C8, machine: M26, days: 8, paid: 590, due: 110}
            - {id: R36, customer: C11, machine: M19, days: 17, paid: 220, due: 100}
          deposits:
            - {id: R117, amount: 210}
            - {id: R36, amount: 130}
          invoices:
            - {id: I11, customer: C8, rental: R117, amount: 300, age: 20}
            - {id: I23, customer: C11, rental: R36, amount: 300, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R81", "severity": "minor", "cost": 60},
        },
    }


def test_damage_minor_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "Rental R113 has minor damage."
    user_context: |-
      You are Lev Monk, customer C12 of a rental desk.
      If asked about cost: 280.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C12, name: Lev Monk, account: private}
            - {id: C22, name: Cleo Marsh, account: private}
            - {id: C26, name: Ines Calder, account: private}
          machines:
            - {id: M24, kind: lift, size: medium, rate: 90, status: out}
            - {id: M37, kind: saw, size: large, rate: 240, status: out}
            - {id: M55, kind: saw, size: small, rate: 280, status: out}
          rentals:
            - {id: R113, customer: C12, machine: M24, days: 20, paid: 290}
            - {id: R99, customer: C22, machine: M37, days: 3, paid: 550, due: 80}
            - {id: R101, customer: C26, machine: M55, days: 7, paid: 330, due: 130}
          deposits:
            - {id: R99, amount: 170}
            - {id: R101, amount: 240}
          invoices:
            - {id: I44, customer: C22, rental: R99, amount: 390, age: 20}
            - {id: I9, customer: C26, rental: R101, amount: 250, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R113", "severity": "minor", "cost": 280},
        },
    }


def test_damage_major_1(x: Any, judge: Any) -> None:
    """!
    query: "Rental R80 has major damage, cost 120."
    user_context: |-
      You are Jory Pell, customer C23 of a rental desk.
      If asked about cost: It is 120.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C23, name: Jory Pell, account: private}
            - {id: C33, name: Ada Quist, account: private}
            - {id: C35, name: Mina Thole, account: private}
          machines:
            - {id: M9, kind: saw, size: small, rate: 50, status: out}
            - {id: M48, kind: saw, size: large, rate: 220, status: out}
            - {id: M41, kind: saw, size: small, rate: 170, status: out}
          rentals:
            - {id: R80, customer: C23, machine: M9, days: 20, paid: 430}
            - {id: R28, customer: C33, machine: M48, days: 18, paid: 350, due: 100}
            - {id: R42, customer: C35, machine: M41, days: 6, paid: 500, due: 20}
          deposits:
            - {id: R28, amount: 220}
            - {id: R42, amount: 290}
          invoices:
            - {id: I28, customer: C33, rental: R28, amount: 110, age: 20}
            - {id: I10, customer: C35, rental: R42, amount: 260, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R80", "severity": "major", "cost": 120},
        },
        "tickets": {
            "TK-1": {"customer": "C23", "topic": "damage", "urgent": 1, "rental": "R80", "status": "open"},
        },
    }


def test_damage_major_2(x: Any, judge: Any) -> None:
    """!
    query: "Rental R7 has major damage, cost 160."
    user_context: |-
      You are Mina Thole, customer C12 of a rental desk.
      If asked about cost: It is 160.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C12, name: Mina Thole, account: site}
            - {id: C35, name: Ines Calder, account: site}
            - {id: C40, name: Sten Haverly, account: site}
          machines:
            - {id: M34, kind: roller, size: small, rate: 90, status: out}
            - {id: M4, kind: loader, size: medium, rate: 70, status: out}
            - {id: M33, kind: excavator, size: medium, rate: 270, status: out}
          rentals:
            - {id: R7, customer: C12, machine: M34, days: 5, paid: 230}
            - {id: R20, customer: C35, machine: M4, days: 9, paid: 540, due: 60}
            - {id: R21, customer: C40, machine: M33, days: 14, paid: 600, due: 130}
          deposits:
            - {id: R20, amount: 260}
            - {id: R21, amount: 150}
          invoices:
            - {id: I28, customer: C35, rental: R20, amount: 110, age: 20}
            - {id: I2, customer: C40, rental: R21, amount: 70, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R7", "severity": "major", "cost": 160},
        },
        "tickets": {
            "TK-1": {"customer": "C12", "topic": "damage", "urgent": 1, "rental": "R7", "status": "open"},
        },
    }


def test_damage_major_3(x: Any, judge: Any) -> None:
    """!
    query: "Rental R113 has major damage, cost 220."
    user_context: |-
      You are Nils Garrow, customer C15 of a rental desk.
      If asked about cost: 220.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C15, name: Nils Garrow, account: private}
            - {id: C10, name: Mina Thole, account: private}
            - {id: C27, name: Lev Monk, account: private}
          machines:
            - {id: M14, kind: saw, size: small, rate: 120, status: out}
            - {id: M4, kind: lift, size: large, rate: 130, status: out}
            - {id: M30, kind: saw, size: medium, rate: 100, status: out}
          rentals:
            - {id: R113, customer: C15, machine: M14, days: 18, paid: 430}
            - {id: R13, customer: C10, machine: M4, days: 6, paid: 510, due: 30}
            - {id: R76, customer: C27, machine: M30, days: 18, paid: 400, due: 60}
          deposits:
            - {id: R13, amount: 120}
            - {id: R76, amount: 150}
          invoices:
            - {id: I12, customer: C10, rental: R13, amount: 130, age: 20}
            - {id: I39, customer: C27, rental: R76, amount: 310, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R113", "severity": "major", "cost": 220},
        },
        "tickets": {
            "TK-1": {"customer": "C15", "topic": "damage", "urgent": 1, "rental": "R113", "status": "open"},
        },
    }


def test_damage_major_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "Rental R82 has major damage."
    user_context: |-
      You are Rhea Dunmore, customer C26 of a rental desk.
      If asked about cost: It is 110.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C26, name: Rhea Dunmore, account: private}
            - {id: C16, name: Jory Pell, account: private}
            - {id: C40, name: Dov Tarn, account: site}
          machines:
            - {id: M49, kind: excavator, size: small, rate: 180, status: out}
            - {id: M33, kind: mixer, size: medium, rate: 260, status: out}
            - {id: M55, kind: lift, size: small, rate: 280, status: out}
          rentals:
            - {id: R82, customer: C26, machine: M49, days: 12, paid: 410}
            - {id: R21, customer: C16, machine: M33, days: 5, paid: 470, due: 130}
            - {id: R51, customer: C40, machine: M55, days: 20, paid: 470, due: 140}
          deposits:
            - {id: R21, amount: 260}
            - {id: R51, amount: 230}
          invoices:
            - {id: I25, customer: C16, rental: R21, amount: 90, age: 20}
            - {id: I42, customer: C40, rental: R51, amount: 140, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R82", "severity": "major", "cost": 110},
        },
        "tickets": {
            "TK-1": {"customer": "C26", "topic": "damage", "urgent": 1, "rental": "R82", "status": "open"},
        },
    }


def test_damage_major_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "Please record major damage on rental R81."
    user_context: |-
      You are Hal Imber, customer C30 of a rental desk.
      If asked about cost: 120.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C30, name: Hal Imber, account: site}
            - {id: C8, name: Kaia Stroud, account: private}
            - {id: C17, name: Ines Calder, account: site}
          machines:
            - {id: M38, kind: roller, size: large, rate: 260, status: out}
            - {id: M34, kind: mixer, size: large, rate: 80, status: out}
            - {id: M25, kind: roller, size: small, rate: 140, status: out}
          rentals:
            - {id: R81, customer: C30, machine: M38, days: 13, paid: 210}
            - {id: R41, customer: C8, machine: M34, days: 4, paid: 530, due: 130}
            - {id: R39, customer: C17, machine: M25, days: 14, paid: 200, due: 100}
          deposits:
            - {id: R41, amount: 220}
            - {id: R39, amount: 300}
          invoices:
            - {id: I29, customer: C8, rental: R41, amount: 240, age: 20}
            - {id: I20, customer: C17, rental: R39, amount: 310, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R81", "severity": "major", "cost": 120},
        },
        "tickets": {
            "TK-1": {"customer": "C30", "topic": "damage", "urgent": 1, "rental": "R81", "status": "open"},
        },
    }


def test_damage_major_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "Rental R26 has major damage."
    user_context: |-
      You are Sten Haverly, customer C37 of a rental desk.
      If asked about cost: It is 180.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C37, name: Sten Haverly, account: private}
            - {id: C28, name: Edda Voss, account: private}
            - {id: C13, name: Gita Rowe, account: site}
          machines:
            - {id: M44, kind: roller, size: medium, rate: 280, status: out}
            - {id: M23, kind: mixer, size: small, rate: 150, status: out}
            - {id: M15, kind: lift, size: medium, rate: 150, status: out}
          rentals:
            - {id: R26, customer: C37, machine: M44, days: 19, paid: 570}
            - {id: R56, customer: C28, machine: M23, days: 18, paid: 270, due: 20}
            - {id: R35, customer: C13, machine: M15, days: 9, paid: 270, due: 150}
          deposits:
            - {id: R56, amount: 280}
            - {id: R35, amount: 300}
          invoices:
            - {id: I59, customer: C28, rental: R56, amount: 50, age: 20}
            - {id: I42, customer: C13, rental: R35, amount: 150, age: 20}
    """
    assert changes(x) == {
        "damages": {
            "DM-1": {"rental": "R26", "severity": "major", "cost": 180},
        },
        "tickets": {
            "TK-1": {"customer": "C37", "topic": "damage", "urgent": 1, "rental": "R26", "status": "open"},
        },
    }


def test_damage_again_1(x: Any, judge: Any) -> None:
    """!
    query: "Rental R13 has minor damage, cost 240."
    user_context: |-
      You are Piet Sandal, customer C24 of a rental desk.
      If asked about cost: It is 240.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C24, name: Piet Sandal, account: site}
            - {id: C29, name: Jory Pell, account: private}
            - {id: C23, name: Ada Quist, account: site}
          machines:
            - {id: M31, kind: saw, size: small, rate: 50, status: out}
            - {id: M53, kind: lift, size: large, rate: 190, status: out}
            - {id: M59, kind: excavator, size: medium, rate: 140, status: out}
          rentals:
            - {id: R13, customer: C24, machine: M31, days: 19, paid: 340}
            - {id: R61, customer: C29, machine: M53, days: 7, paid: 240, due: 100}
            - {id: R66, customer: C23, machine: M59, days: 17, paid: 350, due: 10}
          deposits:
            - {id: R61, amount: 190}
            - {id: R66, amount: 130}
          damages:
            - {id: "DM-0", rental: R13, severity: minor, cost: 240}
          invoices:
            - {id: I45, customer: C29, rental: R61, amount: 170, age: 20}
            - {id: I20, customer: C23, rental: R66, amount: 330, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_damage_again_2(x: Any, judge: Any) -> None:
    """!
    query: "Rental R34 has minor damage, cost 100."
    user_context: |-
      You are Nils Garrow, customer C23 of a rental desk.
      If asked about cost: It is 100.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C23, name: Nils Garrow, account: site}
            - {id: C10, name: Ines Calder, account: private}
            - {id: C31, name: Edda Voss, account: site}
          machines:
            - {id: M6, kind: loader, size: medium, rate: 270, status: out}
            - {id: M5, kind: lift, size: large, rate: 270, status: out}
            - {id: M41, kind: roller, size: large, rate: 290, status: out}
          rentals:
            - {id: R34, customer: C23, machine: M6, days: 18, paid: 330}
            - {id: R35, customer: C10, machine: M5, days: 4, paid: 440, due: 20}
            - {id: R15, customer: C31, machine: M41, days: 7, paid: 220, due: 120}
          deposits:
            - {id: R35, amount: 130}
            - {id: R15, amount: 250}
          damages:
            - {id: "DM-0", rental: R34, severity: minor, cost: 100}
          invoices:
            - {id: I54, customer: C10, rental: R35, amount: 360, age: 20}
            - {id: I30, customer: C31, rental: R15, amount: 120, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_damage_again_3(x: Any, judge: Any) -> None:
    """!
    query: "Rental R99 has minor damage, cost 60."
    user_context: |-
      You are Jory Pell, customer C27 of a rental desk.
      If asked about cost: It is 60.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C27, name: Jory Pell, account: private}
            - {id: C26, name: Finn Osei, account: private}
            - {id: C21, name: Piet Sandal, account: site}
          machines:
            - {id: M27, kind: excavator, size: small, rate: 110, status: out}
            - {id: M23, kind: lift, size: small, rate: 260, status: out}
            - {id: M42, kind: mixer, size: large, rate: 260, status: out}
          rentals:
            - {id: R99, customer: C27, machine: M27, days: 16, paid: 600}
            - {id: R76, customer: C26, machine: M23, days: 8, paid: 560, due: 30}
            - {id: R70, customer: C21, machine: M42, days: 19, paid: 220, due: 120}
          deposits:
            - {id: R76, amount: 280}
            - {id: R70, amount: 250}
          damages:
            - {id: "DM-0", rental: R99, severity: minor, cost: 60}
          invoices:
            - {id: I12, customer: C26, rental: R76, amount: 260, age: 20}
            - {id: I19, customer: C21, rental: R70, amount: 230, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"
