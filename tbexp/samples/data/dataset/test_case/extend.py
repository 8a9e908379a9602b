"""!
scenario: rental_desk
max_user_sim_turns: 4
max_agent_sim_turns: 12
tags: ["domain:extend"]
"""

from __future__ import annotations

from typing import Any


def changes(x: Any) -> Any:
    """What the agent changed: table -> id -> the new row, or the changed fields of an old one."""
    return x.effects["rental_desk"]["changes"]


def test_extend_1(x: Any, judge: Any) -> None:
    """!
    query: "Please extend rental R73 by 6 days."
    user_context: |-
      You are Rhea Dunmore, customer C30 of a rental desk.
      If asked about days: It is 6 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C30, name: Rhea Dunmore, account: site}
            - {id: C39, name: Bo Larkin, account: private}
            - {id: C13, name: Gita Rowe, account: private}
          machines:
            - {id: M59, kind: saw, size: small, rate: 140, status: out}
            - {id: M27, kind: loader, size: medium, rate: 170, status: out}
            - {id: M32, kind: saw, size: large, rate: 60, status: out}
          rentals:
            - {id: R73, customer: C30, machine: M59, days: 9, paid: 470}
            - {id: R38, customer: C39, machine: M27, days: 12, paid: 390, due: 20}
            - {id: R47, customer: C13, machine: M32, days: 16, paid: 570, due: 150}
          deposits:
            - {id: R38, amount: 260}
            - {id: R47, amount: 180}
          invoices:
            - {id: I30, customer: C39, rental: R38, amount: 70, age: 20}
            - {id: I56, customer: C13, rental: R47, amount: 250, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R73": {"days": 15},
        },
    }


def test_extend_2(x: Any, judge: Any) -> None:
    """!
    query: "Please extend rental R35 by 5 days."
    user_context: |-
      You are Bo Larkin, customer C32 of a rental desk.
      If asked about days: 5 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C32, name: Bo Larkin, account: site}
            - {id: C10, name: Mina Thole, account: site}
            - {id: C8, name: Lev Monk, account: site}
          machines:
            - {id: M26, kind: lift, size: large, rate: 120, status: out}
            - {id: M36, kind: lift, size: medium, rate: 120, status: out}
            - {id: M12, kind: excavator, size: large, rate: 300, status: out}
          rentals:
            - {id: R35, customer: C32, machine: M26, days: 9, paid: 490}
            - {id: R67, customer: C10, machine: M36, days: 3, paid: 310, due: 60}
            - {id: R11, customer: C8, machine: M12, days: 9, paid: 520, due: 40}
          deposits:
            - {id: R67, amount: 220}
            - {id: R11, amount: 240}
          invoices:
            - {id: I22, customer: C10, rental: R67, amount: 360, age: 20}
            - {id: I36, customer: C8, rental: R11, amount: 170, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R35": {"days": 14},
        },
    }


def test_extend_3(x: Any, judge: Any) -> None:
    """!
    query: "I need rental R94 for 5 more days."
    user_context: |-
      You are Oona Bright, customer C16 of a rental desk.
      If asked about days: It is 5 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C16, name: Oona Bright, account: private}
            - {id: C3, name: Dov Tarn, account: private}
            - {id: C10, name: Uwe Brandt, account: site}
          machines:
            - {id: M46, kind: mixer, size: small, rate: 200, status: out}
            - {id: M50, kind: loader, size: small, rate: 70, status: out}
            - {id: M14, kind: saw, size: large, rate: 210, status: out}
          rentals:
            - {id: R94, customer: C16, machine: M46, days: 6, paid: 240}
            - {id: R52, customer: C3, machine: M50, days: 15, paid: 220, due: 130}
            - {id: R78, customer: C10, machine: M14, days: 5, paid: 480, due: 60}
          deposits:
            - {id: R52, amount: 190}
            - {id: R78, amount: 270}
          invoices:
            - {id: I7, customer: C3, rental: R52, amount: 100, age: 20}
            - {id: I21, customer: C10, rental: R78, amount: 310, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R94": {"days": 11},
        },
    }


def test_extend_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "I need rental R3 for some more days."
    user_context: |-
      You are Gita Rowe, customer C15 of a rental desk.
      If asked about days: 5 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C15, name: Gita Rowe, account: private}
            - {id: C3, name: Edda Voss, account: private}
            - {id: C14, name: Bo Larkin, account: private}
          machines:
            - {id: M10, kind: excavator, size: small, rate: 50, status: out}
            - {id: M39, kind: roller, size: small, rate: 280, status: out}
            - {id: M26, kind: roller, size: small, rate: 260, status: out}
          rentals:
            - {id: R3, customer: C15, machine: M10, days: 12, paid: 570}
            - {id: R76, customer: C3, machine: M39, days: 10, paid: 530, due: 20}
            - {id: R29, customer: C14, machine: M26, days: 20, paid: 480, due: 10}
          deposits:
            - {id: R76, amount: 300}
            - {id: R29, amount: 160}
          invoices:
            - {id: I37, customer: C3, rental: R76, amount: 50, age: 20}
            - {id: I46, customer: C14, rental: R29, amount: 180, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R3": {"days": 17},
        },
    }


def test_extend_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "I need rental R52 for some more days."
    user_context: |-
      You are Sten Haverly, customer C35 of a rental desk.
      If asked about days: 3 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C35, name: Sten Haverly, account: private}
            - {id: C13, name: Ada Quist, account: private}
            - {id: C8, name: Ines Calder, account: site}
          machines:
            - {id: M4, kind: excavator, size: medium, rate: 220, status: out}
            - {id: M57, kind: mixer, size: medium, rate: 250, status: out}
            - {id: M9, kind: saw, size: small, rate: 170, status: out}
          rentals:
            - {id: R52, customer: C35, machine: M4, days: 3, paid: 460}
            - {id: R51, customer: C13, machine: M57, days: 12, paid: 220, due: 10}
            - {id: R31, customer: C8, machine: M9, days: 5, paid: 530, due: 100}
          deposits:
            - {id: R51, amount: 170}
            - {id: R31, amount: 140}
          invoices:
            - {id: I9, customer: C13, rental: R51, amount: 180, age: 20}
            - {id: I34, customer: C8, rental: R31, amount: 240, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R52": {"days": 6},
        },
    }


def test_extend_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "Please extend rental R13."
    user_context: |-
      You are Uwe Brandt, customer C22 of a rental desk.
      If asked about days: It is 2 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C22, name: Uwe Brandt, account: private}
            - {id: C15, name: Oona Bright, account: site}
            - {id: C10, name: Lev Monk, account: site}
          machines:
            - {id: M21, kind: mixer, size: medium, rate: 200, status: out}
            - {id: M3, kind: mixer, size: small, rate: 180, status: out}
            - {id: M28, kind: lift, size: small, rate: 230, status: out}
          rentals:
            - {id: R13, customer: C22, machine: M21, days: 3, paid: 260}
            - {id: R36, customer: C15, machine: M3, days: 13, paid: 390, due: 120}
            - {id: R96, customer: C10, machine: M28, days: 16, paid: 530, due: 10}
          deposits:
            - {id: R36, amount: 250}
            - {id: R96, amount: 230}
          invoices:
            - {id: I57, customer: C15, rental: R36, amount: 300, age: 20}
            - {id: I59, customer: C10, rental: R96, amount: 50, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R13": {"days": 5},
        },
    }


def test_extend_reserved_1(x: Any, judge: Any) -> None:
    """!
    query: "I need rental R104 for 2 more days."
    user_context: |-
      You are Hal Imber, customer C32 of a rental desk.
      If asked about days: 2 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C32, name: Hal Imber, account: site}
            - {id: C11, name: Kaia Stroud, account: site}
            - {id: C6, name: Bo Larkin, account: private}
          machines:
            - {id: M13, kind: mixer, size: medium, rate: 130, status: out}
            - {id: M17, kind: loader, size: large, rate: 190, status: out}
            - {id: M56, kind: loader, size: large, rate: 100, status: out}
          rentals:
            - {id: R104, customer: C32, machine: M13, days: 13, paid: 310, reserved: 1}
            - {id: R52, customer: C11, machine: M17, days: 3, paid: 570, due: 40}
            - {id: R51, customer: C6, machine: M56, days: 12, paid: 420, due: 70}
          deposits:
            - {id: R52, amount: 250}
            - {id: R51, amount: 180}
          invoices:
            - {id: I21, customer: C11, rental: R52, amount: 160, age: 20}
            - {id: I27, customer: C6, rental: R51, amount: 120, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_extend_reserved_2(x: Any, judge: Any) -> None:
    """!
    query: "I need rental R95 for 5 more days."
    user_context: |-
      You are Finn Osei, customer C33 of a rental desk.
      If asked about days: 5 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C33, name: Finn Osei, account: site}
            - {id: C18, name: Gita Rowe, account: site}
            - {id: C2, name: Sten Haverly, account: private}
          machines:
            - {id: M12, kind: excavator, size: large, rate: 300, status: out}
            - {id: M31, kind: lift, size: medium, rate: 110, status: out}
            - {id: M37, kind: excavator, size: medium, rate: 230, status: out}
          rentals:
            - {id: R95, customer: C33, machine: M12, days: 11, paid: 560, reserved: 1}
            - {id: R31, customer: C18, machine: M31, days: 19, paid: 590, due: 60}
            - {id: R64, customer: C2, machine: M37, days: 20, paid: 330, due: 100}
          deposits:
            - {id: R31, amount: 150}
            - {id: R64, amount: 200}
          invoices:
            - {id: I6, customer: C18, rental: R31, amount: 160, age: 20}
            - {id: I44, customer: C2, rental: R64, amount: 240, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_extend_reserved_3(x: Any, judge: Any) -> None:
    """!
    query: "Please extend rental R94 by 10 days."
    user_context: |-
      You are Cleo Marsh, customer C2 of a rental desk.
      If asked about days: It is 10 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C2, name: Cleo Marsh, account: private}
            - {id: C33, name: Gita Rowe, account: private}
            - {id: C7, name: Sten Haverly, account: site}
          machines:
            - {id: M2, kind: roller, size: small, rate: 230, status: out}
            - {id: M43, kind: roller, size: small, rate: 160, status: out}
            - {id: M59, kind: loader, size: medium, rate: 130, status: out}
          rentals:
            - {id: R94, customer: C2, machine: M2, days: 5, paid: 390, reserved: 1}
            - {id: R64, customer: C33, machine: M43, days: 13, paid: 270, due: 150}
            - {id: R27, customer: C7, machine: M59, days: 20, paid: 410, due: 100}
          deposits:
            - {id: R64, amount: 260}
            - {id: R27, amount: 240}
          invoices:
            - {id: I19, customer: C33, rental: R64, amount: 320, age: 20}
            - {id: I59, customer: C7, rental: R27, amount: 270, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_extend_long_1(x: Any, judge: Any) -> None:
    """!
    query: "Please extend rental R52 by 12 days."
    user_context: |-
      You are Ada Quist, customer C4 of a rental desk.
      If asked about days: It is 12 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C4, name: Ada Quist, account: site}
            - {id: C25, name: Sten Haverly, account: site}
            - {id: C13, name: Edda Voss, account: private}
          machines:
            - {id: M4, kind: lift, size: small, rate: 300, status: out}
            - {id: M27, kind: loader, size: medium, rate: 120, status: out}
            - {id: M5, kind: saw, size: medium, rate: 300, status: out}
          rentals:
            - {id: R52, customer: C4, machine: M4, days: 5, paid: 560}
            - {id: R43, customer: C25, machine: M27, days: 16, paid: 210, due: 40}
            - {id: R31, customer: C13, machine: M5, days: 15, paid: 460, due: 120}
          deposits:
            - {id: R43, amount: 280}
            - {id: R31, amount: 120}
          invoices:
            - {id: I32, customer: C25, rental: R43, amount: 330, age: 20}
            - {id: I35, customer: C13, rental: R31, amount: 350, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_extend_long_2(x: Any, judge: Any) -> None:
    """!
    query: "Please extend rental R24 by 12 days."
    user_context: |-
      You are Hal Imber, customer C14 of a rental desk.
      If asked about days: It is 12 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C14, name: Hal Imber, account: private}
            - {id: C16, name: Cleo Marsh, account: private}
            - {id: C39, name: Dov Tarn, account: site}
          machines:
            - {id: M12, kind: roller, size: medium, rate: 150, status: out}
            - {id: M42, kind: mixer, size: medium, rate: 80, status: out}
            - {id: M45, kind: loader, size: large, rate: 260, status: out}
          rentals:
            - {id: R24, customer: C14, machine: M12, days: 12, paid: 560}
            - {id: R35, customer: C16, machine: M42, days: 9, paid: 540, due: 150}
            - {id: R79, customer: C39, machine: M45, days: 14, paid: 580, due: 140}
          deposits:
            - {id: R35, amount: 180}
            - {id: R79, amount: 260}
          invoices:
            - {id: I9, customer: C16, rental: R35, amount: 150, age: 20}
            - {id: I48, customer: C39, rental: R79, amount: 200, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_extend_long_3(x: Any, judge: Any) -> None:
    """!
    query: "Please extend rental R73 by 19 days."
    user_context: |-
      You are Tess Wilkin, customer C36 of a rental desk.
      If asked about days: 19 days.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C36, name: Tess Wilkin, account: site}
            - {id: C27, name: Ada Quist, account: site}
            - {id: C21, name: Jory Pell, account: site}
          machines:
            - {id: M60, kind: roller, size: small, rate: 170, status: out}
            - {id: M46, kind: mixer, size: small, rate: 90, status: out}
            - {id: M53, kind: excavator, size: medium, rate: 220, status: out}
          rentals:
            - {id: R73, customer: C36, machine: M60, days: 6, paid: 230}
            - {id: R64, customer: C27, machine: M46, days: 6, paid: 370, due: 90}
            - {id: R34, customer: C21, machine: M53, days: 11, paid: 450, due: 30}
          deposits:
            - {id: R64, amount: 300}
            - {id: R34, amount: 140}
          invoices:
            - {id: I51, customer: C27, rental: R64, amount: 160, age: 20}
            - {id: I42, customer: C21, rental: R34, amount: 290, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"
