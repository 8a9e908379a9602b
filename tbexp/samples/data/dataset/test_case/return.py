"""!
scenario: rental_desk
max_user_sim_turns: 4
max_agent_sim_turns: 12
tags: ["domain:return"]
"""

from __future__ import annotations

from typing import Any


def changes(x: Any) -> Any:
    """What the agent changed: table -> id -> the new row, or the changed fields of an old one."""
    return x.effects["rental_desk"]["changes"]


def test_return_private_1(x: Any, judge: Any) -> None:
    """!
    query: "We are done with R103, take it back early."
    user_context: |-
      You are Cleo Marsh, customer C36 of a rental desk.
      If asked about rental: It is R103.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C36, name: Cleo Marsh, account: private}
            - {id: C26, name: Oona Bright, account: site}
            - {id: C7, name: Kaia Stroud, account: site}
          machines:
            - {id: M23, kind: loader, size: small, rate: 140, status: out}
            - {id: M32, kind: saw, size: medium, rate: 150, status: out}
            - {id: M10, kind: excavator, size: medium, rate: 100, status: out}
          rentals:
            - {id: R103, customer: C36, machine: M23, days: 10, paid: 320, due: 80}
            - {id: R27, customer: C26, machine: M32, days: 11, paid: 250, due: 130}
            - {id: R16, customer: C7, machine: M10, days: 11, paid: 490, due: 20}
          deposits:
            - {id: R27, amount: 230}
            - {id: R16, amount: 290}
          invoices:
            - {id: I56, customer: C26, rental: R27, amount: 230, age: 20}
            - {id: I43, customer: C7, rental: R16, amount: 230, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R103": {"refund": 80, "status": "closed"},
        },
        "machines": {
            "M23": {"status": "free"},
        },
    }


def test_return_private_2(x: Any, judge: Any) -> None:
    """!
    query: "Please end my rental R44 early."
    user_context: |-
      You are Ines Calder, customer C29 of a rental desk.
      If asked about rental: R44.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C29, name: Ines Calder, account: private}
            - {id: C3, name: Hal Imber, account: site}
            - {id: C16, name: Finn Osei, account: private}
          machines:
            - {id: M15, kind: lift, size: medium, rate: 70, status: out}
            - {id: M39, kind: lift, size: large, rate: 110, status: out}
            - {id: M27, kind: roller, size: small, rate: 240, status: out}
          rentals:
            - {id: R44, customer: C29, machine: M15, days: 6, paid: 510, due: 200}
            - {id: R115, customer: C3, machine: M39, days: 10, paid: 550, due: 30}
            - {id: R77, customer: C16, machine: M27, days: 19, paid: 230, due: 50}
          deposits:
            - {id: R115, amount: 200}
            - {id: R77, amount: 220}
          invoices:
            - {id: I34, customer: C3, rental: R115, amount: 120, age: 20}
            - {id: I60, customer: C16, rental: R77, amount: 80, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R44": {"refund": 200, "status": "closed"},
        },
        "machines": {
            "M15": {"status": "free"},
        },
    }


def test_return_private_3(x: Any, judge: Any) -> None:
    """!
    query: "Please end my rental R77 early."
    user_context: |-
      You are Ines Calder, customer C8 of a rental desk.
      If asked about rental: It is R77.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C8, name: Ines Calder, account: private}
            - {id: C25, name: Ada Quist, account: site}
            - {id: C3, name: Dov Tarn, account: private}
          machines:
            - {id: M52, kind: roller, size: large, rate: 280, status: out}
            - {id: M26, kind: excavator, size: medium, rate: 270, status: out}
            - {id: M42, kind: roller, size: small, rate: 270, status: out}
          rentals:
            - {id: R77, customer: C8, machine: M52, days: 7, paid: 350, due: 230}
            - {id: R98, customer: C25, machine: M26, days: 8, paid: 330, due: 100}
            - {id: R63, customer: C3, machine: M42, days: 5, paid: 550, due: 20}
          deposits:
            - {id: R98, amount: 190}
            - {id: R63, amount: 270}
          invoices:
            - {id: I5, customer: C25, rental: R98, amount: 360, age: 20}
            - {id: I56, customer: C3, rental: R63, amount: 350, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R77": {"refund": 230, "status": "closed"},
        },
        "machines": {
            "M52": {"status": "free"},
        },
    }


def test_return_private_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "I want to return my machine early."
    user_context: |-
      You are Edda Voss, customer C12 of a rental desk.
      If asked about rental: R86.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C12, name: Edda Voss, account: private}
            - {id: C2, name: Lev Monk, account: site}
            - {id: C37, name: Dov Tarn, account: site}
          machines:
            - {id: M26, kind: loader, size: small, rate: 270, status: out}
            - {id: M21, kind: saw, size: large, rate: 240, status: out}
            - {id: M23, kind: loader, size: small, rate: 90, status: out}
          rentals:
            - {id: R86, customer: C12, machine: M26, days: 8, paid: 260, due: 10}
            - {id: R49, customer: C2, machine: M21, days: 7, paid: 390, due: 80}
            - {id: R72, customer: C37, machine: M23, days: 4, paid: 340, due: 90}
          deposits:
            - {id: R49, amount: 190}
            - {id: R72, amount: 250}
          invoices:
            - {id: I6, customer: C2, rental: R49, amount: 70, age: 20}
            - {id: I58, customer: C37, rental: R72, amount: 50, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R86": {"refund": 10, "status": "closed"},
        },
        "machines": {
            "M26": {"status": "free"},
        },
    }


def test_return_private_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "Please end my rental early."
    user_context: |-
      You are Nils Garrow, customer C39 of a rental desk.
      If asked about rental: R116.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C39, name: Nils Garrow, account: private}
            - {id: C31, name: Bo Larkin, account: site}
            - {id: C36, name: Gita Rowe, account: private}
          machines:
            - {id: M35, kind: loader, size: large, rate: 240, status: out}
            - {id: M6, kind: saw, size: medium, rate: 160, status: out}
            - {id: M45, kind: roller, size: medium, rate: 300, status: out}
          rentals:
            - {id: R116, customer: C39, machine: M35, days: 3, paid: 580, due: 270}
            - {id: R90, customer: C31, machine: M6, days: 17, paid: 220, due: 20}
            - {id: R80, customer: C36, machine: M45, days: 4, paid: 210, due: 130}
          deposits:
            - {id: R90, amount: 290}
            - {id: R80, amount: 220}
          invoices:
            - {id: I22, customer: C31, rental: R90, amount: 240, age: 20}
            - {id: I51, customer: C36, rental: R80, amount: 100, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R116": {"refund": 270, "status": "closed"},
        },
        "machines": {
            "M35": {"status": "free"},
        },
    }


def test_return_private_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "I want to return my machine early."
    user_context: |-
      You are Jory Pell, customer C11 of a rental desk.
      If asked about rental: It is R52.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C11, name: Jory Pell, account: private}
            - {id: C20, name: Oona Bright, account: site}
            - {id: C19, name: Finn Osei, account: private}
          machines:
            - {id: M2, kind: lift, size: small, rate: 210, status: out}
            - {id: M40, kind: saw, size: large, rate: 50, status: out}
            - {id: M36, kind: lift, size: small, rate: 80, status: out}
          rentals:
            - {id: R52, customer: C11, machine: M2, days: 16, paid: 560, due: 390}
            - {id: R93, customer: C20, machine: M40, days: 11, paid: 570, due: 60}
            - {id: R41, customer: C19, machine: M36, days: 9, paid: 230, due: 50}
          deposits:
            - {id: R93, amount: 120}
            - {id: R41, amount: 210}
          invoices:
            - {id: I26, customer: C20, rental: R93, amount: 90, age: 20}
            - {id: I16, customer: C19, rental: R41, amount: 90, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R52": {"refund": 390, "status": "closed"},
        },
        "machines": {
            "M2": {"status": "free"},
        },
    }


def test_return_site_approved_1(x: Any, judge: Any) -> None:
    """!
    query: "I want to return rental R9 early."
    user_context: |-
      You are Mina Thole, customer C37 of a rental desk.
      If asked about rental: R9.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C37, name: Mina Thole, account: site}
            - {id: C21, name: Sten Haverly, account: private}
            - {id: C6, name: Gita Rowe, account: site}
          machines:
            - {id: M57, kind: roller, size: medium, rate: 190, status: out}
            - {id: M13, kind: roller, size: medium, rate: 160, status: out}
            - {id: M25, kind: saw, size: large, rate: 290, status: out}
          rentals:
            - {id: R9, customer: C37, machine: M57, days: 10, paid: 460, due: 390}
            - {id: R108, customer: C21, machine: M13, days: 10, paid: 330, due: 110}
            - {id: R71, customer: C6, machine: M25, days: 15, paid: 540, due: 60}
          deposits:
            - {id: R108, amount: 100}
            - {id: R71, amount: 140}
          invoices:
            - {id: I39, customer: C21, rental: R108, amount: 60, age: 20}
            - {id: I6, customer: C6, rental: R71, amount: 280, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R9", "action": "return", "decision": "approved", "machine": "M57", "status": "open"},
        },
        "rentals": {
            "R9": {"refund": 390, "status": "closed"},
        },
        "machines": {
            "M57": {"status": "free"},
        },
    }


def test_return_site_approved_2(x: Any, judge: Any) -> None:
    """!
    query: "We are done with R10, take it back early."
    user_context: |-
      You are Dov Tarn, customer C31 of a rental desk.
      If asked about rental: R10.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C31, name: Dov Tarn, account: site}
            - {id: C19, name: Bo Larkin, account: private}
            - {id: C5, name: Piet Sandal, account: private}
          machines:
            - {id: M40, kind: mixer, size: small, rate: 70, status: out}
            - {id: M52, kind: saw, size: large, rate: 160, status: out}
            - {id: M11, kind: roller, size: small, rate: 220, status: out}
          rentals:
            - {id: R10, customer: C31, machine: M40, days: 18, paid: 250, due: 80}
            - {id: R27, customer: C19, machine: M52, days: 16, paid: 550, due: 10}
            - {id: R4, customer: C5, machine: M11, days: 8, paid: 200, due: 100}
          deposits:
            - {id: R27, amount: 240}
            - {id: R4, amount: 240}
          invoices:
            - {id: I25, customer: C19, rental: R27, amount: 340, age: 20}
            - {id: I53, customer: C5, rental: R4, amount: 300, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R10", "action": "return", "decision": "approved", "machine": "M40", "status": "open"},
        },
        "rentals": {
            "R10": {"refund": 80, "status": "closed"},
        },
        "machines": {
            "M40": {"status": "free"},
        },
    }


def test_return_site_approved_3(x: Any, judge: Any) -> None:
    """!
    query: "I want to return rental R7 early."
    user_context: |-
      You are Edda Voss, customer C27 of a rental desk.
      If asked about rental: R7.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C27, name: Edda Voss, account: site}
            - {id: C15, name: Nils Garrow, account: site}
            - {id: C40, name: Piet Sandal, account: site}
          machines:
            - {id: M5, kind: loader, size: medium, rate: 250, status: out}
            - {id: M46, kind: saw, size: large, rate: 210, status: out}
            - {id: M27, kind: loader, size: small, rate: 130, status: out}
          rentals:
            - {id: R7, customer: C27, machine: M5, days: 6, paid: 590, due: 300}
            - {id: R13, customer: C15, machine: M46, days: 5, paid: 550, due: 90}
            - {id: R75, customer: C40, machine: M27, days: 16, paid: 260, due: 90}
          deposits:
            - {id: R13, amount: 160}
            - {id: R75, amount: 280}
          invoices:
            - {id: I31, customer: C15, rental: R13, amount: 310, age: 20}
            - {id: I58, customer: C40, rental: R75, amount: 160, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R7", "action": "return", "decision": "approved", "machine": "M5", "status": "open"},
        },
        "rentals": {
            "R7": {"refund": 300, "status": "closed"},
        },
        "machines": {
            "M5": {"status": "free"},
        },
    }


def test_return_site_approved_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "Please end my rental early."
    user_context: |-
      You are Hal Imber, customer C14 of a rental desk.
      If asked about rental: It is R26.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C14, name: Hal Imber, account: site}
            - {id: C39, name: Bo Larkin, account: site}
            - {id: C35, name: Cleo Marsh, account: private}
          machines:
            - {id: M44, kind: loader, size: small, rate: 50, status: out}
            - {id: M18, kind: roller, size: small, rate: 270, status: out}
            - {id: M57, kind: saw, size: small, rate: 270, status: out}
          rentals:
            - {id: R26, customer: C14, machine: M44, days: 11, paid: 440, due: 240}
            - {id: R101, customer: C39, machine: M18, days: 17, paid: 510, due: 90}
            - {id: R77, customer: C35, machine: M57, days: 19, paid: 240, due: 20}
          deposits:
            - {id: R101, amount: 140}
            - {id: R77, amount: 120}
          invoices:
            - {id: I53, customer: C39, rental: R101, amount: 160, age: 20}
            - {id: I43, customer: C35, rental: R77, amount: 280, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R26", "action": "return", "decision": "approved", "machine": "M44", "status": "open"},
        },
        "rentals": {
            "R26": {"refund": 240, "status": "closed"},
        },
        "machines": {
            "M44": {"status": "free"},
        },
    }


def test_return_site_approved_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "We are done, take the machine back early."
    user_context: |-
      You are Uwe Brandt, customer C3 of a rental desk.
      If asked about rental: R1.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C3, name: Uwe Brandt, account: site}
            - {id: C1, name: Ada Quist, account: private}
            - {id: C33, name: Mina Thole, account: private}
          machines:
            - {id: M3, kind: saw, size: medium, rate: 170, status: out}
            - {id: M15, kind: mixer, size: large, rate: 200, status: out}
            - {id: M53, kind: loader, size: small, rate: 150, status: out}
          rentals:
            - {id: R1, customer: C3, machine: M3, days: 8, paid: 200, due: 120}
            - {id: R118, customer: C1, machine: M15, days: 9, paid: 400, due: 110}
            - {id: R54, customer: C33, machine: M53, days: 11, paid: 460, due: 90}
          deposits:
            - {id: R118, amount: 180}
            - {id: R54, amount: 140}
          invoices:
            - {id: I31, customer: C1, rental: R118, amount: 250, age: 20}
            - {id: I21, customer: C33, rental: R54, amount: 400, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R1", "action": "return", "decision": "approved", "machine": "M3", "status": "open"},
        },
        "rentals": {
            "R1": {"refund": 120, "status": "closed"},
        },
        "machines": {
            "M3": {"status": "free"},
        },
    }


def test_return_site_approved_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "Please end my rental early."
    user_context: |-
      You are Tess Wilkin, customer C36 of a rental desk.
      If asked about rental: R99.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C36, name: Tess Wilkin, account: site}
            - {id: C28, name: Hal Imber, account: site}
            - {id: C5, name: Piet Sandal, account: private}
          machines:
            - {id: M21, kind: loader, size: medium, rate: 140, status: out}
            - {id: M58, kind: lift, size: large, rate: 180, status: out}
            - {id: M15, kind: saw, size: medium, rate: 140, status: out}
          rentals:
            - {id: R99, customer: C36, machine: M21, days: 17, paid: 600, due: 270}
            - {id: R78, customer: C28, machine: M58, days: 11, paid: 450, due: 140}
            - {id: R21, customer: C5, machine: M15, days: 19, paid: 310, due: 30}
          deposits:
            - {id: R78, amount: 300}
            - {id: R21, amount: 260}
          invoices:
            - {id: I24, customer: C28, rental: R78, amount: 190, age: 20}
            - {id: I60, customer: C5, rental: R21, amount: 110, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R99", "action": "return", "decision": "approved", "machine": "M21", "status": "open"},
        },
        "rentals": {
            "R99": {"refund": 270, "status": "closed"},
        },
        "machines": {
            "M21": {"status": "free"},
        },
    }


def test_return_site_denied_1(x: Any, judge: Any) -> None:
    """!
    query: "We are done with R58, take it back early."
    user_context: |-
      You are Edda Voss, customer C6 of a rental desk.
      If asked about rental: R58.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C6, name: Edda Voss, account: site}
            - {id: C25, name: Mina Thole, account: private}
            - {id: C24, name: Finn Osei, account: private}
          machines:
            - {id: M34, kind: saw, size: medium, rate: 180, status: out}
            - {id: M47, kind: saw, size: medium, rate: 240, status: out}
            - {id: M54, kind: lift, size: small, rate: 250, status: out}
          rentals:
            - {id: R58, customer: C6, machine: M34, days: 11, paid: 230, due: 110, manager: denied}
            - {id: R61, customer: C25, machine: M47, days: 7, paid: 510, due: 110}
            - {id: R22, customer: C24, machine: M54, days: 10, paid: 370, due: 60}
          deposits:
            - {id: R61, amount: 210}
            - {id: R22, amount: 240}
          invoices:
            - {id: I33, customer: C25, rental: R61, amount: 310, age: 20}
            - {id: I4, customer: C24, rental: R22, amount: 150, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R58", "action": "return", "decision": "denied", "machine": "M34", "status": "open"},
        },
    }


def test_return_site_denied_2(x: Any, judge: Any) -> None:
    """!
    query: "I want to return rental R84 early."
    user_context: |-
      You are Piet Sandal, customer C7 of a rental desk.
      If asked about rental: R84.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C7, name: Piet Sandal, account: site}
            - {id: C25, name: Jory Pell, account: site}
            - {id: C17, name: Kaia Stroud, account: site}
          machines:
            - {id: M4, kind: excavator, size: medium, rate: 60, status: out}
            - {id: M46, kind: excavator, size: large, rate: 50, status: out}
            - {id: M42, kind: saw, size: large, rate: 210, status: out}
          rentals:
            - {id: R84, customer: C7, machine: M4, days: 10, paid: 450, due: 230, manager: denied}
            - {id: R69, customer: C25, machine: M46, days: 5, paid: 580, due: 100}
            - {id: R104, customer: C17, machine: M42, days: 7, paid: 470, due: 150}
          deposits:
            - {id: R69, amount: 250}
            - {id: R104, amount: 300}
          invoices:
            - {id: I13, customer: C25, rental: R69, amount: 380, age: 20}
            - {id: I47, customer: C17, rental: R104, amount: 180, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R84", "action": "return", "decision": "denied", "machine": "M4", "status": "open"},
        },
    }


def test_return_site_denied_3(x: Any, judge: Any) -> None:
    """!
    query: "I want to return rental R25 early."
    user_context: |-
      You are Edda Voss, customer C26 of a rental desk.
      If asked about rental: R25.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C26, name: Edda Voss, account: site}
            - {id: C39, name: Rhea Dunmore, account: site}
            - {id: C15, name: Gita Rowe, account: private}
          machines:
            - {id: M38, kind: loader, size: medium, rate: 130, status: out}
            - {id: M22, kind: lift, size: small, rate: 200, status: out}
            - {id: M42, kind: roller, size: small, rate: 220, status: out}
          rentals:
            - {id: R25, customer: C26, machine: M38, days: 8, paid: 370, due: 80, manager: denied}
            - {id: R97, customer: C39, machine: M22, days: 20, paid: 600, due: 10}
            - {id: R4, customer: C15, machine: M42, days: 18, paid: 560, due: 90}
          deposits:
            - {id: R97, amount: 150}
            - {id: R4, amount: 220}
          invoices:
            - {id: I58, customer: C39, rental: R97, amount: 180, age: 20}
            - {id: I23, customer: C15, rental: R4, amount: 390, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R25", "action": "return", "decision": "denied", "machine": "M38", "status": "open"},
        },
    }


def test_return_site_denied_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "I want to return my machine early."
    user_context: |-
      You are Rhea Dunmore, customer C1 of a rental desk.
      If asked about rental: It is R85.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C1, name: Rhea Dunmore, account: site}
            - {id: C39, name: Lev Monk, account: private}
            - {id: C27, name: Oona Bright, account: site}
          machines:
            - {id: M50, kind: excavator, size: large, rate: 220, status: out}
            - {id: M36, kind: saw, size: large, rate: 240, status: out}
            - {id: M59, kind: loader, size: medium, rate: 200, status: out}
          rentals:
            - {id: R85, customer: C1, machine: M50, days: 8, paid: 270, due: 70, manager: denied}
            - {id: R6, customer: C39, machine: M36, days: 8, paid: 200, due: 50}
            - {id: R17, customer: C27, machine: M59, days: 12, paid: 480, due: 40}
          deposits:
            - {id: R6, amount: 250}
            - {id: R17, amount: 190}
          invoices:
            - {id: I11, customer: C39, rental: R6, amount: 350, age: 20}
            - {id: I30, customer: C27, rental: R17, amount: 160, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R85", "action": "return", "decision": "denied", "machine": "M50", "status": "open"},
        },
    }


def test_return_site_denied_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "We are done, take the machine back early."
    user_context: |-
      You are Rhea Dunmore, customer C40 of a rental desk.
      If asked about rental: It is R54.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C40, name: Rhea Dunmore, account: site}
            - {id: C26, name: Cleo Marsh, account: site}
            - {id: C4, name: Uwe Brandt, account: private}
          machines:
            - {id: M25, kind: excavator, size: medium, rate: 190, status: out}
            - {id: M31, kind: mixer, size: small, rate: 50, status: out}
            - {id: M13, kind: loader, size: large, rate: 160, status: out}
          rentals:
            - {id: R54, customer: C40, machine: M25, days: 8, paid: 430, due: 250, manager: denied}
            - {id: R90, customer: C26, machine: M31, days: 20, paid: 440, due: 130}
            - {id: R32, customer: C4, machine: M13, days: 12, paid: 470, due: 90}
          deposits:
            - {id: R90, amount: 130}
            - {id: R32, amount: 270}
          invoices:
            - {id: I26, customer: C26, rental: R90, amount: 370, age: 20}
            - {id: I59, customer: C4, rental: R32, amount: 390, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R54", "action": "return", "decision": "denied", "machine": "M25", "status": "open"},
        },
    }


def test_return_site_denied_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "We are done, take the machine back early."
    user_context: |-
      You are Oona Bright, customer C15 of a rental desk.
      If asked about rental: R33.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C15, name: Oona Bright, account: site}
            - {id: C24, name: Lev Monk, account: private}
            - {id: C7, name: Dov Tarn, account: site}
          machines:
            - {id: M31, kind: loader, size: medium, rate: 80, status: out}
            - {id: M37, kind: roller, size: small, rate: 300, status: out}
            - {id: M23, kind: loader, size: medium, rate: 100, status: out}
          rentals:
            - {id: R33, customer: C15, machine: M31, days: 9, paid: 250, due: 100, manager: denied}
            - {id: R114, customer: C24, machine: M37, days: 8, paid: 320, due: 60}
            - {id: R51, customer: C7, machine: M23, days: 12, paid: 600, due: 100}
          deposits:
            - {id: R114, amount: 110}
            - {id: R51, amount: 250}
          invoices:
            - {id: I29, customer: C24, rental: R114, amount: 270, age: 20}
            - {id: I31, customer: C7, rental: R51, amount: 160, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R33", "action": "return", "decision": "denied", "machine": "M31", "status": "open"},
        },
    }


def test_return_closed_1(x: Any, judge: Any) -> None:
    """!
    query: "Please end my rental R65 early."
    user_context: |-
      You are Jory Pell, customer C13 of a rental desk.
      If asked about rental: R65.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C13, name: Jory Pell, account: private}
            - {id: C10, name: Bo Larkin, account: private}
            - {id: C40, name: Dov Tarn, account: private}
          machines:
            - {id: M55, kind: saw, size: small, rate: 280}
            - {id: M59, kind: mixer, size: medium, rate: 60, status: out}
            - {id: M11, kind: excavator, size: small, rate: 90, status: out}
          rentals:
            - {id: R65, customer: C13, machine: M55, days: 8, paid: 580, due: 480, status: closed}
            - {id: R7, customer: C10, machine: M59, days: 8, paid: 260, due: 110}
            - {id: R25, customer: C40, machine: M11, days: 4, paid: 500, due: 30}
          deposits:
            - {id: R7, amount: 130}
            - {id: R25, amount: 150}
          invoices:
            - {id: I24, customer: C10, rental: R7, amount: 340, age: 20}
            - {id: I25, customer: C40, rental: R25, amount: 290, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_return_closed_2(x: Any, judge: Any) -> None:
    """!
    query: "We are done with R81, take it back early."
    user_context: |-
      You are Lev Monk, customer C32 of a rental desk.
      If asked about rental: R81.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C32, name: Lev Monk, account: private}
            - {id: C38, name: Kaia Stroud, account: site}
            - {id: C1, name: Finn Osei, account: private}
          machines:
            - {id: M7, kind: mixer, size: small, rate: 200}
            - {id: M39, kind: saw, size: medium, rate: 230, status: out}
            - {id: M27, kind: excavator, size: large, rate: 230, status: out}
          rentals:
            - {id: R81, customer: C32, machine: M7, days: 13, paid: 420, due: 250, status: closed}
            - {id: R43, customer: C38, machine: M39, days: 17, paid: 530, due: 80}
            - {id: R67, customer: C1, machine: M27, days: 11, paid: 290, due: 100}
          deposits:
            - {id: R43, amount: 180}
            - {id: R67, amount: 210}
          invoices:
            - {id: I32, customer: C38, rental: R43, amount: 360, age: 20}
            - {id: I54, customer: C1, rental: R67, amount: 110, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_return_closed_3(x: Any, judge: Any) -> None:
    """!
    query: "Please end my rental R110 early."
    user_context: |-
      You are Gita Rowe, customer C16 of a rental desk.
      If asked about rental: R110.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C16, name: Gita Rowe, account: private}
            - {id: C38, name: Kaia Stroud, account: site}
            - {id: C34, name: Bo Larkin, account: site}
          machines:
            - {id: M49, kind: mixer, size: large, rate: 50}
            - {id: M16, kind: mixer, size: small, rate: 60, status: out}
            - {id: M21, kind: excavator, size: medium, rate: 280, status: out}
          rentals:
            - {id: R110, customer: C16, machine: M49, days: 18, paid: 210, due: 140, status: closed}
            - {id: R93, customer: C38, machine: M16, days: 17, paid: 210, due: 20}
            - {id: R34, customer: C34, machine: M21, days: 11, paid: 490, due: 110}
          deposits:
            - {id: R93, amount: 160}
            - {id: R34, amount: 160}
          invoices:
            - {id: I7, customer: C38, rental: R93, amount: 230, age: 20}
            - {id: I38, customer: C34, rental: R34, amount: 290, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"
