"""!
scenario: rental_desk
max_user_sim_turns: 4
max_agent_sim_turns: 12
tags: ["domain:items"]
"""

from __future__ import annotations

from typing import Any


def changes(x: Any) -> Any:
    """What the agent changed: table -> id -> the new row, or the changed fields of an old one."""
    return x.effects["rental_desk"]["changes"]


def test_items_1(x: Any, judge: Any) -> None:
    """!
    query: "Please add a ramp and a helmet to rental R28."
    user_context: |-
      You are Mina Thole, customer C35 of a rental desk.
      If asked about accessories or items: A ramp and a helmet.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C35, name: Mina Thole, account: private}
            - {id: C26, name: Cleo Marsh, account: site}
            - {id: C39, name: Uwe Brandt, account: site}
          machines:
            - {id: M47, kind: loader, size: small, rate: 160, status: out}
            - {id: M2, kind: mixer, size: large, rate: 180, status: out}
            - {id: M50, kind: excavator, size: small, rate: 140, status: out}
          rentals:
            - {id: R28, customer: C35, machine: M47, days: 4, paid: 230}
            - {id: R44, customer: C26, machine: M2, days: 5, paid: 590, due: 100}
            - {id: R117, customer: C39, machine: M50, days: 11, paid: 450, due: 50}
          deposits:
            - {id: R44, amount: 250}
            - {id: R117, amount: 180}
          invoices:
            - {id: I23, customer: C26, rental: R44, amount: 110, age: 20}
            - {id: I42, customer: C39, rental: R117, amount: 290, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R28": {"items": "helmet ramp"},
        },
    }


def test_items_2(x: Any, judge: Any) -> None:
    """!
    query: "I need a ramp and a trailer for rental R101."
    user_context: |-
      You are Bo Larkin, customer C1 of a rental desk.
      If asked about accessories or items: A ramp and a trailer.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C1, name: Bo Larkin, account: private}
            - {id: C28, name: Piet Sandal, account: site}
            - {id: C11, name: Oona Bright, account: site}
          machines:
            - {id: M17, kind: loader, size: small, rate: 180, status: out}
            - {id: M1, kind: mixer, size: medium, rate: 180, status: out}
            - {id: M49, kind: saw, size: small, rate: 250, status: out}
          rentals:
            - {id: R101, customer: C1, machine: M17, days: 9, paid: 550}
            - {id: R118, customer: C28, machine: M1, days: 16, paid: 470, due: 10}
            - {id: R10, customer: C11, machine: M49, days: 17, paid: 330, due: 90}
          deposits:
            - {id: R118, amount: 270}
            - {id: R10, amount: 260}
          invoices:
            - {id: I8, customer: C28, rental: R118, amount: 220, age: 20}
            - {id: I48, customer: C11, rental: R10, amount: 260, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R101": {"items": "ramp trailer"},
        },
    }


def test_items_3(x: Any, judge: Any) -> None:
    """!
    query: "I need a lamp and a trailer for rental R23."
    user_context: |-
      You are Lev Monk, customer C38 of a rental desk.
      If asked about accessories or items: A lamp and a trailer.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C38, name: Lev Monk, account: private}
            - {id: C26, name: Jory Pell, account: site}
            - {id: C30, name: Cleo Marsh, account: site}
          machines:
            - {id: M45, kind: loader, size: small, rate: 290, status: out}
            - {id: M16, kind: roller, size: medium, rate: 150, status: out}
            - {id: M35, kind: excavator, size: large, rate: 150, status: out}
          rentals:
            - {id: R23, customer: C38, machine: M45, days: 11, paid: 470}
            - {id: R102, customer: C26, machine: M16, days: 12, paid: 430, due: 50}
            - {id: R61, customer: C30, machine: M35, days: 6, paid: 570, due: 120}
          deposits:
            - {id: R102, amount: 130}
            - {id: R61, amount: 180}
          invoices:
            - {id: I28, customer: C26, rental: R102, amount: 360, age: 20}
            - {id: I20, customer: C30, rental: R61, amount: 180, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R23": {"items": "lamp trailer"},
        },
    }


def test_items_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "I need some accessories for rental R41."
    user_context: |-
      You are Tess Wilkin, customer C1 of a rental desk.
      If asked about accessories or items: A lamp and a trailer.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C1, name: Tess Wilkin, account: site}
            - {id: C24, name: Sten Haverly, account: site}
            - {id: C35, name: Dov Tarn, account: private}
          machines:
            - {id: M24, kind: saw, size: small, rate: 240, status: out}
            - {id: M46, kind: excavator, size: small, rate: 80, status: out}
            - {id: M60, kind: saw, size: small, rate: 150, status: out}
          rentals:
            - {id: R41, customer: C1, machine: M24, days: 16, paid: 260}
            - {id: R95, customer: C24, machine: M46, days: 3, paid: 390, due: 50}
            - {id: R44, customer: C35, machine: M60, days: 16, paid: 310, due: 40}
          deposits:
            - {id: R95, amount: 280}
            - {id: R44, amount: 290}
          invoices:
            - {id: I38, customer: C24, rental: R95, amount: 210, age: 20}
            - {id: I9, customer: C35, rental: R44, amount: 240, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R41": {"items": "lamp trailer"},
        },
    }


def test_items_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "I need some accessories for rental R98."
    user_context: |-
      You are Lev Monk, customer C22 of a rental desk.
      If asked about accessories or items: A helmet and a trailer.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C22, name: Lev Monk, account: site}
            - {id: C27, name: Piet Sandal, account: private}
            - {id: C11, name: Ines Calder, account: private}
          machines:
            - {id: M54, kind: excavator, size: large, rate: 140, status: out}
            - {id: M55, kind: mixer, size: small, rate: 280, status: out}
            - {id: M34, kind: excavator, size: medium, rate: 100, status: out}
          rentals:
            - {id: R98, customer: C22, machine: M54, days: 6, paid: 220}
            - {id: R27, customer: C27, machine: M55, days: 3, paid: 520, due: 40}
            - {id: R28, customer: C11, machine: M34, days: 5, paid: 560, due: 70}
          deposits:
            - {id: R27, amount: 280}
            - {id: R28, amount: 120}
          invoices:
            - {id: I23, customer: C27, rental: R27, amount: 210, age: 20}
            - {id: I43, customer: C11, rental: R28, amount: 310, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R98": {"items": "helmet trailer"},
        },
    }


def test_items_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "Please add accessories to rental R63."
    user_context: |-
      You are Sten Haverly, customer C20 of a rental desk.
      If asked about accessories or items: A ramp and a lamp.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C20, name: Sten Haverly, account: site}
            - {id: C7, name: Jory Pell, account: private}
            - {id: C26, name: Gita Rowe, account: site}
          machines:
            - {id: M11, kind: lift, size: medium, rate: 190, status: out}
            - {id: M19, kind: loader, size: small, rate: 130, status: out}
            - {id: M3, kind: loader, size: small, rate: 260, status: out}
          rentals:
            - {id: R63, customer: C20, machine: M11, days: 9, paid: 570}
            - {id: R16, customer: C7, machine: M19, days: 4, paid: 270, due: 30}
            - {id: R72, customer: C26, machine: M3, days: 15, paid: 540, due: 60}
          deposits:
            - {id: R16, amount: 100}
            - {id: R72, amount: 190}
          invoices:
            - {id: I37, customer: C7, rental: R16, amount: 260, age: 20}
            - {id: I49, customer: C26, rental: R72, amount: 140, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R63": {"items": "lamp ramp"},
        },
    }


def test_items_breaker_large_1(x: Any, judge: Any) -> None:
    """!
    query: "I need a helmet and a breaker for rental R18."
    user_context: |-
      You are Oona Bright, customer C16 of a rental desk.
      If asked about accessories or items: A helmet and a breaker.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C16, name: Oona Bright, account: site}
            - {id: C10, name: Bo Larkin, account: site}
            - {id: C2, name: Ines Calder, account: site}
          machines:
            - {id: M41, kind: roller, size: large, rate: 130, status: out}
            - {id: M50, kind: lift, size: small, rate: 280, status: out}
            - {id: M6, kind: roller, size: large, rate: 80, status: out}
          rentals:
            - {id: R18, customer: C16, machine: M41, days: 14, paid: 230}
            - {id: R118, customer: C10, machine: M50, days: 10, paid: 470, due: 110}
            - {id: R37, customer: C2, machine: M6, days: 10, paid: 560, due: 140}
          deposits:
            - {id: R118, amount: 120}
            - {id: R37, amount: 190}
          invoices:
            - {id: I25, customer: C10, rental: R118, amount: 70, age: 20}
            - {id: I36, customer: C2, rental: R37, amount: 370, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R18": {"items": "breaker helmet"},
        },
    }


def test_items_breaker_large_2(x: Any, judge: Any) -> None:
    """!
    query: "I need a trailer and a breaker for rental R29."
    user_context: |-
      You are Tess Wilkin, customer C10 of a rental desk.
      If asked about accessories or items: A trailer and a breaker.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C10, name: Tess Wilkin, account: site}
            - {id: C20, name: Cleo Marsh, account: site}
            - {id: C18, name: Dov Tarn, account: private}
          machines:
            - {id: M34, kind: mixer, size: large, rate: 190, status: out}
            - {id: M9, kind: loader, size: small, rate: 100, status: out}
            - {id: M1, kind: mixer, size: small, rate: 180, status: out}
          rentals:
            - {id: R29, customer: C10, machine: M34, days: 13, paid: 400}
            - {id: R98, customer: C20, machine: M9, days: 4, paid: 480, due: 50}
            - {id: R100, customer: C18, machine: M1, days: 20, paid: 560, due: 60}
          deposits:
            - {id: R98, amount: 100}
            - {id: R100, amount: 160}
          invoices:
            - {id: I19, customer: C20, rental: R98, amount: 160, age: 20}
            - {id: I6, customer: C18, rental: R100, amount: 210, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R29": {"items": "breaker trailer"},
        },
    }


def test_items_breaker_large_3(x: Any, judge: Any) -> None:
    """!
    query: "I need a trailer and a breaker for rental R52."
    user_context: |-
      You are Rhea Dunmore, customer C32 of a rental desk.
      If asked about accessories or items: A trailer and a breaker.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C32, name: Rhea Dunmore, account: site}
            - {id: C36, name: Dov Tarn, account: site}
            - {id: C27, name: Nils Garrow, account: site}
          machines:
            - {id: M10, kind: saw, size: large, rate: 300, status: out}
            - {id: M55, kind: mixer, size: large, rate: 280, status: out}
            - {id: M14, kind: lift, size: large, rate: 170, status: out}
          rentals:
            - {id: R52, customer: C32, machine: M10, days: 18, paid: 330}
            - {id: R67, customer: C36, machine: M55, days: 5, paid: 280, due: 20}
            - {id: R91, customer: C27, machine: M14, days: 9, paid: 350, due: 100}
          deposits:
            - {id: R67, amount: 260}
            - {id: R91, amount: 120}
          invoices:
            - {id: I25, customer: C36, rental: R67, amount: 310, age: 20}
            - {id: I11, customer: C27, rental: R91, amount: 250, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R52": {"items": "breaker trailer"},
        },
    }


def test_items_breaker_1(x: Any, judge: Any) -> None:
    """!
    query: "Please add a trailer and a breaker to rental R60."
    user_context: |-
      You are Cleo Marsh, customer C25 of a rental desk.
      If asked about accessories or items: A trailer and a breaker.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C25, name: Cleo Marsh, account: site}
            - {id: C2, name: Nils Garrow, account: private}
            - {id: C29, name: Dov Tarn, account: private}
          machines:
            - {id: M32, kind: saw, size: small, rate: 110, status: out}
            - {id: M17, kind: excavator, size: medium, rate: 180, status: out}
            - {id: M37, kind: lift, size: medium, rate: 220, status: out}
          rentals:
            - {id: R60, customer: C25, machine: M32, days: 7, paid: 450}
            - {id: R96, customer: C2, machine: M17, days: 13, paid: 340, due: 40}
            - {id: R34, customer: C29, machine: M37, days: 15, paid: 510, due: 150}
          deposits:
            - {id: R96, amount: 160}
            - {id: R34, amount: 220}
          invoices:
            - {id: I50, customer: C2, rental: R96, amount: 230, age: 20}
            - {id: I3, customer: C29, rental: R34, amount: 70, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_items_breaker_2(x: Any, judge: Any) -> None:
    """!
    query: "I need a helmet and a breaker for rental R68."
    user_context: |-
      You are Edda Voss, customer C29 of a rental desk.
      If asked about accessories or items: A helmet and a breaker.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C29, name: Edda Voss, account: private}
            - {id: C21, name: Rhea Dunmore, account: private}
            - {id: C19, name: Finn Osei, account: private}
          machines:
            - {id: M58, kind: saw, size: medium, rate: 80, status: out}
            - {id: M30, kind: lift, size: large, rate: 190, status: out}
            - {id: M43, kind: roller, size: small, rate: 190, status: out}
          rentals:
            - {id: R68, customer: C29, machine: M58, days: 11, paid: 300}
            - {id: R73, customer: C21, machine: M30, days: 14, paid: 230, due: 20}
            - {id: R45, customer: C19, machine: M43, days: 5, paid: 270, due: 150}
          deposits:
            - {id: R73, amount: 100}
            - {id: R45, amount: 250}
          invoices:
            - {id: I6, customer: C21, rental: R73, amount: 260, age: 20}
            - {id: I5, customer: C19, rental: R45, amount: 250, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_items_breaker_3(x: Any, judge: Any) -> None:
    """!
    query: "Please add a trailer and a breaker to rental R56."
    user_context: |-
      You are Piet Sandal, customer C13 of a rental desk.
      If asked about accessories or items: A trailer and a breaker.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C13, name: Piet Sandal, account: private}
            - {id: C7, name: Lev Monk, account: private}
            - {id: C4, name: Sten Haverly, account: private}
          machines:
            - {id: M8, kind: roller, size: small, rate: 70, status: out}
            - {id: M12, kind: excavator, size: large, rate: 300, status: out}
            - {id: M30, kind: roller, size: medium, rate: 290, status: out}
          rentals:
            - {id: R56, customer: C13, machine: M8, days: 20, paid: 340}
            - {id: R90, customer: C7, machine: M12, days: 3, paid: 430, due: 40}
            - {id: R95, customer: C4, machine: M30, days: 19, paid: 400, due: 120}
          deposits:
            - {id: R90, amount: 110}
            - {id: R95, amount: 190}
          invoices:
            - {id: I55, customer: C7, rental: R90, amount: 290, age: 20}
            - {id: I29, customer: C4, rental: R95, amount: 330, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"
