"""!
scenario: rental_desk
max_user_sim_turns: 4
max_agent_sim_turns: 12
tags: ["domain:invoice"]
"""

from __future__ import annotations

from typing import Any


def changes(x: Any) -> Any:
    """What the agent changed: table -> id -> the new row, or the changed fields of an old one."""
    return x.effects["rental_desk"]["changes"]


def test_invoice_1(x: Any, judge: Any) -> None:
    """!
    query: "I want my money back for invoice I29."
    user_context: |-
      You are Oona Bright, customer C5 of a rental desk.
      If asked about invoice: It is I29.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C5, name: Oona Bright, account: private}
            - {id: C14, name: Nils Garrow, account: private}
            - {id: C26, name: Finn Osei, account: site}
          machines:
            - {id: M12, kind: excavator, size: large, rate: 260, status: out}
            - {id: M35, kind: excavator, size: small, rate: 70, status: out}
            - {id: M14, kind: mixer, size: medium, rate: 170, status: out}
          rentals:
            - {id: R42, customer: C5, machine: M12, days: 10, paid: 250}
            - {id: R58, customer: C14, machine: M35, days: 10, paid: 560, due: 60}
            - {id: R65, customer: C26, machine: M14, days: 5, paid: 430, due: 80}
          deposits:
            - {id: R58, amount: 230}
            - {id: R65, amount: 230}
          invoices:
            - {id: I29, customer: C5, rental: R42, amount: 260, age: 25}
            - {id: I60, customer: C14, rental: R58, amount: 110, age: 20}
            - {id: I37, customer: C26, rental: R65, amount: 110, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I29": {"refunded": 260, "status": "refunded"},
        },
    }


def test_invoice_2(x: Any, judge: Any) -> None:
    """!
    query: "Please refund invoice I4."
    user_context: |-
      You are Nils Garrow, customer C6 of a rental desk.
      If asked about invoice: I4.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C6, name: Nils Garrow, account: site}
            - {id: C3, name: Lev Monk, account: site}
            - {id: C36, name: Ada Quist, account: site}
          machines:
            - {id: M18, kind: lift, size: large, rate: 140, status: out}
            - {id: M22, kind: loader, size: large, rate: 140, status: out}
            - {id: M51, kind: excavator, size: medium, rate: 70, status: out}
          rentals:
            - {id: R18, customer: C6, machine: M18, days: 14, paid: 420}
            - {id: R59, customer: C3, machine: M22, days: 11, paid: 440, due: 70}
            - {id: R77, customer: C36, machine: M51, days: 12, paid: 260, due: 150}
          deposits:
            - {id: R59, amount: 150}
            - {id: R77, amount: 180}
          invoices:
            - {id: I4, customer: C6, rental: R18, amount: 370, age: 30}
            - {id: I40, customer: C3, rental: R59, amount: 390, age: 20}
            - {id: I30, customer: C36, rental: R77, amount: 370, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I4": {"refunded": 370, "status": "refunded"},
        },
    }


def test_invoice_3(x: Any, judge: Any) -> None:
    """!
    query: "I want my money back for invoice I41."
    user_context: |-
      You are Cleo Marsh, customer C32 of a rental desk.
      If asked about invoice: I41.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C32, name: Cleo Marsh, account: site}
            - {id: C36, name: Uwe Brandt, account: site}
            - {id: C23, name: Edda Voss, account: site}
          machines:
            - {id: M3, kind: loader, size: large, rate: 290, status: out}
            - {id: M17, kind: lift, size: medium, rate: 50, status: out}
            - {id: M26, kind: mixer, size: large, rate: 70, status: out}
          rentals:
            - {id: R56, customer: C32, machine: M3, days: 6, paid: 550}
            - {id: R64, customer: C36, machine: M17, days: 14, paid: 270, due: 130}
            - {id: R91, customer: C23, machine: M26, days: 19, paid: 580, due: 110}
          deposits:
            - {id: R64, amount: 180}
            - {id: R91, amount: 130}
          invoices:
            - {id: I41, customer: C32, rental: R56, amount: 180, age: 20}
            - {id: I40, customer: C36, rental: R64, amount: 230, age: 20}
            - {id: I39, customer: C23, rental: R91, amount: 100, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I41": {"refunded": 180, "status": "refunded"},
        },
    }


def test_invoice_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "Please refund my invoice."
    user_context: |-
      You are Rhea Dunmore, customer C19 of a rental desk.
      If asked about invoice: It is I1.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C19, name: Rhea Dunmore, account: site}
            - {id: C23, name: Tess Wilkin, account: private}
            - {id: C6, name: Kaia Stroud, account: private}
          machines:
            - {id: M16, kind: lift, size: medium, rate: 60, status: out}
            - {id: M29, kind: lift, size: medium, rate: 240, status: out}
            - {id: M31, kind: saw, size: medium, rate: 60, status: out}
          rentals:
            - {id: R46, customer: C19, machine: M16, days: 18, paid: 240}
            - {id: R89, customer: C23, machine: M29, days: 5, paid: 210, due: 30}
            - {id: R39, customer: C6, machine: M31, days: 15, paid: 210, due: 40}
          deposits:
            - {id: R89, amount: 150}
            - {id: R39, amount: 280}
          invoices:
            - {id: I1, customer: C19, rental: R46, amount: 170, age: 15}
            - {id: I32, customer: C23, rental: R89, amount: 310, age: 20}
            - {id: I16, customer: C6, rental: R39, amount: 140, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I1": {"refunded": 170, "status": "refunded"},
        },
    }


def test_invoice_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "Please refund my invoice."
    user_context: |-
      You are Hal Imber, customer C21 of a rental desk.
      If asked about invoice: I5.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C21, name: Hal Imber, account: private}
            - {id: C28, name: Oona Bright, account: private}
            - {id: C35, name: Ada Quist, account: private}
          machines:
            - {id: M17, kind: mixer, size: small, rate: 170, status: out}
            - {id: M43, kind: lift, size: medium, rate: 50, status: out}
            - {id: M31, kind: roller, size: medium, rate: 120, status: out}
          rentals:
            - {id: R22, customer: C21, machine: M17, days: 11, paid: 560}
            - {id: R52, customer: C28, machine: M43, days: 5, paid: 220, due: 10}
            - {id: R54, customer: C35, machine: M31, days: 15, paid: 560, due: 140}
          deposits:
            - {id: R52, amount: 240}
            - {id: R54, amount: 260}
          invoices:
            - {id: I5, customer: C21, rental: R22, amount: 330, age: 5}
            - {id: I59, customer: C28, rental: R52, amount: 120, age: 20}
            - {id: I20, customer: C35, rental: R54, amount: 60, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I5": {"refunded": 330, "status": "refunded"},
        },
    }


def test_invoice_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "Please refund my invoice."
    user_context: |-
      You are Oona Bright, customer C14 of a rental desk.
      If asked about invoice: It is I6.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C14, name: Oona Bright, account: private}
            - {id: C36, name: Rhea Dunmore, account: site}
            - {id: C37, name: Edda Voss, account: site}
          machines:
            - {id: M13, kind: mixer, size: large, rate: 260, status: out}
            - {id: M54, kind: roller, size: small, rate: 250, status: out}
            - {id: M37, kind: roller, size: large, rate: 70, status: out}
          rentals:
            - {id: R96, customer: C14, machine: M13, days: 6, paid: 320}
            - {id: R91, customer: C36, machine: M54, days: 7, paid: 570, due: 130}
            - {id: R39, customer: C37, machine: M37, days: 16, paid: 310, due: 10}
          deposits:
            - {id: R91, amount: 120}
            - {id: R39, amount: 130}
          invoices:
            - {id: I6, customer: C14, rental: R96, amount: 260, age: 25}
            - {id: I5, customer: C36, rental: R91, amount: 250, age: 20}
            - {id: I44, customer: C37, rental: R39, amount: 170, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I6": {"refunded": 260, "status": "refunded"},
        },
    }


def test_invoice_part_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "Please refund a part of invoice I47."
    user_context: |-
      You are Jory Pell, customer C18 of a rental desk.
      If asked about amount: 330.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C18, name: Jory Pell, account: private}
            - {id: C38, name: Hal Imber, account: site}
            - {id: C2, name: Piet Sandal, account: private}
          machines:
            - {id: M55, kind: excavator, size: small, rate: 260, status: out}
            - {id: M50, kind: lift, size: medium, rate: 140, status: out}
            - {id: M5, kind: loader, size: large, rate: 180, status: out}
          rentals:
            - {id: R35, customer: C18, machine: M55, days: 9, paid: 480}
            - {id: R23, customer: C38, machine: M50, days: 6, paid: 230, due: 120}
            - {id: R20, customer: C2, machine: M5, days: 4, paid: 360, due: 140}
          deposits:
            - {id: R23, amount: 290}
            - {id: R20, amount: 200}
          invoices:
            - {id: I47, customer: C18, rental: R35, amount: 450, age: 5}
            - {id: I13, customer: C38, rental: R23, amount: 90, age: 20}
            - {id: I17, customer: C2, rental: R20, amount: 380, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I47": {"refunded": 330, "status": "refunded"},
        },
    }


def test_invoice_part_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "I want a part of invoice I40 back."
    user_context: |-
      You are Cleo Marsh, customer C16 of a rental desk.
      If asked about amount: It is 40.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C16, name: Cleo Marsh, account: private}
            - {id: C8, name: Uwe Brandt, account: site}
            - {id: C29, name: Finn Osei, account: private}
          machines:
            - {id: M16, kind: loader, size: medium, rate: 70, status: out}
            - {id: M5, kind: excavator, size: medium, rate: 70, status: out}
            - {id: M48, kind: mixer, size: small, rate: 120, status: out}
          rentals:
            - {id: R116, customer: C16, machine: M16, days: 18, paid: 210}
            - {id: R66, customer: C8, machine: M5, days: 18, paid: 470, due: 130}
            - {id: R104, customer: C29, machine: M48, days: 18, paid: 420, due: 130}
          deposits:
            - {id: R66, amount: 260}
            - {id: R104, amount: 170}
          invoices:
            - {id: I40, customer: C16, rental: R116, amount: 130, age: 25}
            - {id: I60, customer: C8, rental: R66, amount: 60, age: 20}
            - {id: I26, customer: C29, rental: R104, amount: 190, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I40": {"refunded": 40, "status": "refunded"},
        },
    }


def test_invoice_part_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "I want a part of invoice I26 back."
    user_context: |-
      You are Edda Voss, customer C13 of a rental desk.
      If asked about amount: It is 210.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C13, name: Edda Voss, account: site}
            - {id: C40, name: Kaia Stroud, account: site}
            - {id: C11, name: Bo Larkin, account: private}
          machines:
            - {id: M45, kind: mixer, size: medium, rate: 130, status: out}
            - {id: M5, kind: excavator, size: large, rate: 280, status: out}
            - {id: M3, kind: loader, size: small, rate: 170, status: out}
          rentals:
            - {id: R49, customer: C13, machine: M45, days: 3, paid: 510}
            - {id: R56, customer: C40, machine: M5, days: 10, paid: 490, due: 100}
            - {id: R6, customer: C11, machine: M3, days: 4, paid: 220, due: 100}
          deposits:
            - {id: R56, amount: 120}
            - {id: R6, amount: 290}
          invoices:
            - {id: I26, customer: C13, rental: R49, amount: 380, age: 5}
            - {id: I25, customer: C40, rental: R56, amount: 130, age: 20}
            - {id: I43, customer: C11, rental: R6, amount: 380, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I26": {"refunded": 210, "status": "refunded"},
        },
    }


def test_invoice_old_1(x: Any, judge: Any) -> None:
    """!
    query: "Please refund invoice I56."
    user_context: |-
      You are Nils Garrow, customer C37 of a rental desk.
      If asked about invoice: It is I56.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C37, name: Nils Garrow, account: private}
            - {id: C11, name: Mina Thole, account: site}
            - {id: C3, name: Gita Rowe, account: private}
          machines:
            - {id: M27, kind: roller, size: medium, rate: 120, status: out}
            - {id: M30, kind: roller, size: medium, rate: 180, status: out}
            - {id: M29, kind: mixer, size: small, rate: 100, status: out}
          rentals:
            - {id: R36, customer: C37, machine: M27, days: 7, paid: 500}
            - {id: R21, customer: C11, machine: M30, days: 3, paid: 480, due: 70}
            - {id: R97, customer: C3, machine: M29, days: 19, paid: 330, due: 80}
          deposits:
            - {id: R21, amount: 300}
            - {id: R97, amount: 230}
          invoices:
            - {id: I56, customer: C37, rental: R36, amount: 220, age: 50}
            - {id: I55, customer: C11, rental: R21, amount: 200, age: 20}
            - {id: I21, customer: C3, rental: R97, amount: 190, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_invoice_old_2(x: Any, judge: Any) -> None:
    """!
    query: "I want my money back for invoice I28."
    user_context: |-
      You are Hal Imber, customer C37 of a rental desk.
      If asked about invoice: I28.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C37, name: Hal Imber, account: site}
            - {id: C38, name: Uwe Brandt, account: private}
            - {id: C12, name: Oona Bright, account: private}
          machines:
            - {id: M21, kind: saw, size: medium, rate: 150, status: out}
            - {id: M7, kind: lift, size: small, rate: 170, status: out}
            - {id: M30, kind: saw, size: small, rate: 230, status: out}
          rentals:
            - {id: R30, customer: C37, machine: M21, days: 8, paid: 310}
            - {id: R83, customer: C38, machine: M7, days: 20, paid: 400, due: 20}
            - {id: R2, customer: C12, machine: M30, days: 8, paid: 360, due: 150}
          deposits:
            - {id: R83, amount: 150}
            - {id: R2, amount: 160}
          invoices:
            - {id: I28, customer: C37, rental: R30, amount: 380, age: 45}
            - {id: I3, customer: C38, rental: R83, amount: 100, age: 20}
            - {id: I7, customer: C12, rental: R2, amount: 240, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_invoice_old_3(x: Any, judge: Any) -> None:
    """!
    query: "Please refund invoice I39."
    user_context: |-
      You are Hal Imber, customer C4 of a rental desk.
      If asked about invoice: I39.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C4, name: Hal Imber, account: private}
            - {id: C3, name: Oona Bright, account: site}
            - {id: C18, name: Dov Tarn, account: site}
          machines:
            - {id: M14, kind: roller, size: small, rate: 130, status: out}
            - {id: M39, kind: saw, size: large, rate: 50, status: out}
            - {id: M11, kind: mixer, size: medium, rate: 180, status: out}
          rentals:
            - {id: R106, customer: C4, machine: M14, days: 12, paid: 500}
            - {id: R112, customer: C3, machine: M39, days: 9, paid: 530, due: 110}
            - {id: R1, customer: C18, machine: M11, days: 3, paid: 370, due: 80}
          deposits:
            - {id: R112, amount: 240}
            - {id: R1, amount: 180}
          invoices:
            - {id: I39, customer: C4, rental: R106, amount: 400, age: 50}
            - {id: I59, customer: C3, rental: R112, amount: 150, age: 20}
            - {id: I15, customer: C18, rental: R1, amount: 330, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_invoice_refunded_1(x: Any, judge: Any) -> None:
    """!
    query: "I want my money back for invoice I39."
    user_context: |-
      You are Gita Rowe, customer C3 of a rental desk.
      If asked about invoice: I39.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C3, name: Gita Rowe, account: private}
            - {id: C20, name: Kaia Stroud, account: private}
            - {id: C26, name: Tess Wilkin, account: site}
          machines:
            - {id: M52, kind: loader, size: small, rate: 270, status: out}
            - {id: M60, kind: roller, size: medium, rate: 50, status: out}
            - {id: M43, kind: excavator, size: medium, rate: 270, status: out}
          rentals:
            - {id: R14, customer: C3, machine: M52, days: 18, paid: 290}
            - {id: R72, customer: C20, machine: M60, days: 3, paid: 270, due: 30}
            - {id: R8, customer: C26, machine: M43, days: 9, paid: 400, due: 50}
          deposits:
            - {id: R72, amount: 290}
            - {id: R8, amount: 150}
          invoices:
            - {id: I39, customer: C3, rental: R14, amount: 410, age: 30, refunded: 410, status: refunded}
            - {id: I56, customer: C20, rental: R72, amount: 120, age: 20}
            - {id: I17, customer: C26, rental: R8, amount: 60, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_invoice_refunded_2(x: Any, judge: Any) -> None:
    """!
    query: "I want my money back for invoice I29."
    user_context: |-
      You are Gita Rowe, customer C1 of a rental desk.
      If asked about invoice: I29.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C1, name: Gita Rowe, account: site}
            - {id: C20, name: Finn Osei, account: private}
            - {id: C37, name: Cleo Marsh, account: site}
          machines:
            - {id: M53, kind: roller, size: large, rate: 90, status: out}
            - {id: M49, kind: mixer, size: large, rate: 130, status: out}
            - {id: M25, kind: loader, size: large, rate: 60, status: out}
          rentals:
            - {id: R18, customer: C1, machine: M53, days: 11, paid: 530}
            - {id: R9, customer: C20, machine: M49, days: 3, paid: 440, due: 90}
            - {id: R39, customer: C37, machine: M25, days: 19, paid: 400, due: 120}
          deposits:
            - {id: R9, amount: 260}
            - {id: R39, amount: 280}
          invoices:
            - {id: I29, customer: C1, rental: R18, amount: 430, age: 5, refunded: 430, status: refunded}
            - {id: I8, customer: C20, rental: R9, amount: 320, age: 20}
            - {id: I33, customer: C37, rental: R39, amount: 70, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_invoice_refunded_3(x: Any, judge: Any) -> None:
    """!
    query: "I want my money back for invoice I10."
    user_context: |-
      You are Kaia Stroud, customer C17 of a rental desk.
      If asked about invoice: It is I10.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C17, name: Kaia Stroud, account: site}
            - {id: C7, name: Lev Monk, account: private}
            - {id: C18, name: Gita Rowe, account: site}
          machines:
            - {id: M39, kind: mixer, size: large, rate: 200, status: out}
            - {id: M56, kind: lift, size: small, rate: 170, status: out}
            - {id: M15, kind: roller, size: medium, rate: 50, status: out}
          rentals:
            - {id: R63, customer: C17, machine: M39, days: 18, paid: 320}
            - {id: R65, customer: C7, machine: M56, days: 15, paid: 390, due: 10}
            - {id: R78, customer: C18, machine: M15, days: 11, paid: 560, due: 30}
          deposits:
            - {id: R65, amount: 160}
            - {id: R78, amount: 260}
          invoices:
            - {id: I10, customer: C17, rental: R63, amount: 210, age: 15, refunded: 210, status: refunded}
            - {id: I36, customer: C7, rental: R65, amount: 220, age: 20}
            - {id: I14, customer: C18, rental: R78, amount: 170, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_invoice_twice_1(x: Any, judge: Any) -> None:
    """!
    query: "I was billed twice for rental R10."
    user_context: |-
      You are Oona Bright, customer C25 of a rental desk.
      If asked about rental: It is R10.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C25, name: Oona Bright, account: site}
            - {id: C6, name: Cleo Marsh, account: site}
            - {id: C7, name: Piet Sandal, account: private}
          machines:
            - {id: M14, kind: saw, size: large, rate: 250, status: out}
            - {id: M36, kind: loader, size: small, rate: 230, status: out}
            - {id: M41, kind: saw, size: medium, rate: 250, status: out}
          rentals:
            - {id: R10, customer: C25, machine: M14, days: 8, paid: 470}
            - {id: R74, customer: C6, machine: M36, days: 19, paid: 310, due: 40}
            - {id: R113, customer: C7, machine: M41, days: 7, paid: 540, due: 80}
          deposits:
            - {id: R74, amount: 120}
            - {id: R113, amount: 220}
          invoices:
            - {id: I14, customer: C25, rental: R10, amount: 120, age: 20}
            - {id: I19, customer: C25, rental: R10, amount: 120, age: 10}
            - {id: I59, customer: C6, rental: R74, amount: 180, age: 20}
            - {id: I50, customer: C7, rental: R113, amount: 240, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I19": {"status": "void"},
        },
    }


def test_invoice_twice_2(x: Any, judge: Any) -> None:
    """!
    query: "I was billed twice for rental R53."
    user_context: |-
      You are Ada Quist, customer C40 of a rental desk.
      If asked about rental: R53.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C40, name: Ada Quist, account: site}
            - {id: C34, name: Finn Osei, account: private}
            - {id: C14, name: Tess Wilkin, account: private}
          machines:
            - {id: M51, kind: saw, size: medium, rate: 260, status: out}
            - {id: M27, kind: roller, size: medium, rate: 250, status: out}
            - {id: M19, kind: loader, size: small, rate: 110, status: out}
          rentals:
            - {id: R53, customer: C40, machine: M51, days: 10, paid: 210}
            - {id: R113, customer: C34, machine: M27, days: 3, paid: 260, due: 120}
            - {id: R60, customer: C14, machine: M19, days: 6, paid: 390, due: 150}
          deposits:
            - {id: R113, amount: 160}
            - {id: R60, amount: 300}
          invoices:
            - {id: I26, customer: C40, rental: R53, amount: 260, age: 20}
            - {id: I24, customer: C40, rental: R53, amount: 260, age: 10}
            - {id: I20, customer: C34, rental: R113, amount: 140, age: 20}
            - {id: I41, customer: C14, rental: R60, amount: 50, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I24": {"status": "void"},
        },
    }


def test_invoice_twice_3(x: Any, judge: Any) -> None:
    """!
    query: "I was billed twice for rental R7."
    user_context: |-
      You are Bo Larkin, customer C38 of a rental desk.
      If asked about rental: R7.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C38, name: Bo Larkin, account: site}
            - {id: C21, name: Hal Imber, account: site}
            - {id: C17, name: Mina Thole, account: private}
          machines:
            - {id: M39, kind: roller, size: medium, rate: 170, status: out}
            - {id: M22, kind: excavator, size: small, rate: 90, status: out}
            - {id: M54, kind: mixer, size: small, rate: 160, status: out}
          rentals:
            - {id: R7, customer: C38, machine: M39, days: 12, paid: 550}
            - {id: R8, customer: C21, machine: M22, days: 11, paid: 590, due: 80}
            - {id: R100, customer: C17, machine: M54, days: 13, paid: 300, due: 110}
          deposits:
            - {id: R8, amount: 140}
            - {id: R100, amount: 130}
          invoices:
            - {id: I50, customer: C38, rental: R7, amount: 300, age: 20}
            - {id: I29, customer: C38, rental: R7, amount: 300, age: 10}
            - {id: I52, customer: C21, rental: R8, amount: 70, age: 20}
            - {id: I13, customer: C17, rental: R100, amount: 170, age: 20}
    """
    assert changes(x) == {
        "invoices": {
            "I29": {"status": "void"},
        },
    }


def test_invoice_differs_1(x: Any, judge: Any) -> None:
    """!
    query: "Please void the double invoice of rental R17."
    user_context: |-
      You are Uwe Brandt, customer C17 of a rental desk.
      If asked about rental: It is R17.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C17, name: Uwe Brandt, account: private}
            - {id: C26, name: Nils Garrow, account: site}
            - {id: C1, name: Sten Haverly, account: private}
          machines:
            - {id: M14, kind: mixer, size: large, rate: 160, status: out}
            - {id: M16, kind: mixer, size: large, rate: 80, status: out}
            - {id: M6, kind: saw, size: small, rate: 90, status: out}
          rentals:
            - {id: R17, customer: C17, machine: M14, days: 16, paid: 210}
            - {id: R84, customer: C26, machine: M16, days: 8, paid: 560, due: 100}
            - {id: R43, customer: C1, machine: M6, days: 10, paid: 240, due: 110}
          deposits:
            - {id: R84, amount: 190}
            - {id: R43, amount: 250}
          invoices:
            - {id: I6, customer: C17, rental: R17, amount: 100, age: 20}
            - {id: I13, customer: C17, rental: R17, amount: 270, age: 10}
            - {id: I31, customer: C26, rental: R84, amount: 360, age: 20}
            - {id: I5, customer: C1, rental: R43, amount: 340, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_invoice_differs_2(x: Any, judge: Any) -> None:
    """!
    query: "Please void the double invoice of rental R105."
    user_context: |-
      You are Ada Quist, customer C2 of a rental desk.
      If asked about rental: R105.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C2, name: Ada Quist, account: site}
            - {id: C8, name: Cleo Marsh, account: private}
            - {id: C36, name: Hal Imber, account: private}
          machines:
            - {id: M16, kind: loader, size: small, rate: 190, status: out}
            - {id: M25, kind: lift, size: small, rate: 250, status: out}
            - {id: M3, kind: excavator, size: large, rate: 50, status: out}
          rentals:
            - {id: R105, customer: C2, machine: M16, days: 10, paid: 400}
            - {id: R21, customer: C8, machine: M25, days: 20, paid: 340, due: 100}
            - {id: R84, customer: C36, machine: M3, days: 11, paid: 370, due: 110}
          deposits:
            - {id: R21, amount: 100}
            - {id: R84, amount: 180}
          invoices:
            - {id: I39, customer: C2, rental: R105, amount: 320, age: 20}
            - {id: I36, customer: C2, rental: R105, amount: 470, age: 10}
            - {id: I57, customer: C8, rental: R21, amount: 330, age: 20}
            - {id: I48, customer: C36, rental: R84, amount: 120, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_invoice_differs_3(x: Any, judge: Any) -> None:
    """!
    query: "Please void the double invoice of rental R35."
    user_context: |-
      You are Finn Osei, customer C18 of a rental desk.
      If asked about rental: R35.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C18, name: Finn Osei, account: site}
            - {id: C34, name: Tess Wilkin, account: private}
            - {id: C26, name: Hal Imber, account: site}
          machines:
            - {id: M45, kind: mixer, size: small, rate: 150, status: out}
            - {id: M51, kind: roller, size: large, rate: 110, status: out}
            - {id: M33, kind: excavator, size: small, rate: 250, status: out}
          rentals:
            - {id: R35, customer: C18, machine: M45, days: 19, paid: 360}
            - {id: R68, customer: C34, machine: M51, days: 11, paid: 490, due: 140}
            - {id: R14, customer: C26, machine: M33, days: 4, paid: 390, due: 100}
          deposits:
            - {id: R68, amount: 170}
            - {id: R14, amount: 250}
          invoices:
            - {id: I39, customer: C18, rental: R35, amount: 480, age: 20}
            - {id: I46, customer: C18, rental: R35, amount: 380, age: 10}
            - {id: I30, customer: C34, rental: R68, amount: 230, age: 20}
            - {id: I33, customer: C26, rental: R14, amount: 260, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"
