"""!
scenario: rental_desk
max_user_sim_turns: 4
max_agent_sim_turns: 12
tags: ["domain:swap"]
"""

from __future__ import annotations

from typing import Any


def changes(x: Any) -> Any:
    """What the agent changed: table -> id -> the new row, or the changed fields of an old one."""
    return x.effects["rental_desk"]["changes"]


def test_swap_private_1(x: Any, judge: Any) -> None:
    """!
    query: "Please swap rental R16 to machine M19."
    user_context: |-
      You are Finn Osei, customer C39 of a rental desk.
      If asked about machine: It is M19.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C39, name: Finn Osei, account: private}
            - {id: C40, name: Tess Wilkin, account: private}
            - {id: C24, name: Jory Pell, account: private}
          machines:
            - {id: M18, kind: loader, size: large, rate: 100, status: out}
            - {id: M19, kind: mixer, size: medium, rate: 100}
            - {id: M1, kind: lift, size: large, rate: 150, status: out}
            - {id: M36, kind: mixer, size: medium, rate: 170, status: out}
          rentals:
            - {id: R16, customer: C39, machine: M18, days: 10, paid: 500}
            - {id: R87, customer: C40, machine: M1, days: 6, paid: 260, due: 120}
            - {id: R6, customer: C24, machine: M36, days: 11, paid: 390, due: 60}
          deposits:
            - {id: R87, amount: 260}
            - {id: R6, amount: 300}
          invoices:
            - {id: I11, customer: C40, rental: R87, amount: 240, age: 20}
            - {id: I20, customer: C24, rental: R6, amount: 190, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R16": {"machine": "M19"},
        },
        "machines": {
            "M18": {"status": "free"},
            "M19": {"status": "out"},
        },
    }


def test_swap_private_2(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M31 for rental R71."
    user_context: |-
      You are Bo Larkin, customer C8 of a rental desk.
      If asked about machine: M31.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C8, name: Bo Larkin, account: private}
            - {id: C1, name: Piet Sandal, account: site}
            - {id: C28, name: Dov Tarn, account: private}
          machines:
            - {id: M28, kind: excavator, size: large, rate: 300, status: out}
            - {id: M31, kind: loader, size: small, rate: 190}
            - {id: M11, kind: lift, size: large, rate: 190, status: out}
            - {id: M54, kind: saw, size: large, rate: 150, status: out}
          rentals:
            - {id: R71, customer: C8, machine: M28, days: 13, paid: 260}
            - {id: R49, customer: C1, machine: M11, days: 16, paid: 600, due: 70}
            - {id: R95, customer: C28, machine: M54, days: 15, paid: 510, due: 130}
          deposits:
            - {id: R49, amount: 240}
            - {id: R95, amount: 290}
          invoices:
            - {id: I55, customer: C1, rental: R49, amount: 230, age: 20}
            - {id: I42, customer: C28, rental: R95, amount: 400, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R71": {"machine": "M31"},
        },
        "machines": {
            "M28": {"status": "free"},
            "M31": {"status": "out"},
        },
    }


def test_swap_private_3(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M45 for rental R26."
    user_context: |-
      You are Lev Monk, customer C37 of a rental desk.
      If asked about machine: It is M45.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C37, name: Lev Monk, account: private}
            - {id: C17, name: Rhea Dunmore, account: private}
            - {id: C19, name: Nils Garrow, account: private}
          machines:
            - {id: M39, kind: saw, size: large, rate: 150, status: out}
            - {id: M45, kind: loader, size: medium, rate: 190}
            - {id: M5, kind: mixer, size: medium, rate: 260, status: out}
            - {id: M20, kind: mixer, size: small, rate: 270, status: out}
          rentals:
            - {id: R26, customer: C37, machine: M39, days: 5, paid: 480}
            - {id: R112, customer: C17, machine: M5, days: 20, paid: 430, due: 90}
            - {id: R86, customer: C19, machine: M20, days: 15, paid: 430, due: 110}
          deposits:
            - {id: R112, amount: 170}
            - {id: R86, amount: 140}
          invoices:
            - {id: I28, customer: C17, rental: R112, amount: 160, age: 20}
            - {id: I36, customer: C19, rental: R86, amount: 100, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R26": {"machine": "M45"},
        },
        "machines": {
            "M39": {"status": "free"},
            "M45": {"status": "out"},
        },
    }


def test_swap_private_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "I want another machine for rental R114."
    user_context: |-
      You are Edda Voss, customer C32 of a rental desk.
      If asked about machine: M56.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C32, name: Edda Voss, account: private}
            - {id: C7, name: Kaia Stroud, account: private}
            - {id: C19, name: Cleo Marsh, account: site}
          machines:
            - {id: M12, kind: saw, size: large, rate: 300, status: out}
            - {id: M56, kind: mixer, size: medium, rate: 60}
            - {id: M24, kind: lift, size: medium, rate: 90}
            - {id: M42, kind: excavator, size: medium, rate: 260}
            - {id: M10, kind: mixer, size: large, rate: 290, status: out}
            - {id: M49, kind: saw, size: medium, rate: 180, status: out}
          rentals:
            - {id: R114, customer: C32, machine: M12, days: 13, paid: 590}
            - {id: R19, customer: C7, machine: M10, days: 18, paid: 280, due: 50}
            - {id: R73, customer: C19, machine: M49, days: 3, paid: 240, due: 90}
          deposits:
            - {id: R19, amount: 260}
            - {id: R73, amount: 150}
          invoices:
            - {id: I10, customer: C7, rental: R19, amount: 100, age: 20}
            - {id: I25, customer: C19, rental: R73, amount: 400, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R114": {"machine": "M56"},
        },
        "machines": {
            "M12": {"status": "free"},
            "M56": {"status": "out"},
        },
    }


def test_swap_private_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "I want another machine for rental R35."
    user_context: |-
      You are Gita Rowe, customer C32 of a rental desk.
      If asked about machine: M27.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C32, name: Gita Rowe, account: private}
            - {id: C40, name: Mina Thole, account: site}
            - {id: C16, name: Rhea Dunmore, account: site}
          machines:
            - {id: M60, kind: lift, size: large, rate: 260, status: out}
            - {id: M27, kind: excavator, size: small, rate: 190}
            - {id: M50, kind: loader, size: small, rate: 90}
            - {id: M28, kind: saw, size: small, rate: 120}
            - {id: M41, kind: saw, size: small, rate: 290, status: out}
            - {id: M7, kind: loader, size: large, rate: 80, status: out}
          rentals:
            - {id: R35, customer: C32, machine: M60, days: 9, paid: 340}
            - {id: R23, customer: C40, machine: M41, days: 8, paid: 320, due: 30}
            - {id: R76, customer: C16, machine: M7, days: 19, paid: 490, due: 10}
          deposits:
            - {id: R23, amount: 100}
            - {id: R76, amount: 190}
          invoices:
            - {id: I54, customer: C40, rental: R23, amount: 370, age: 20}
            - {id: I6, customer: C16, rental: R76, amount: 100, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R35": {"machine": "M27"},
        },
        "machines": {
            "M60": {"status": "free"},
            "M27": {"status": "out"},
        },
    }


def test_swap_private_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "I want another machine for rental R61."
    user_context: |-
      You are Jory Pell, customer C22 of a rental desk.
      If asked about machine: It is M13.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C22, name: Jory Pell, account: private}
            - {id: C35, name: Kaia Stroud, account: private}
            - {id: C24, name: Ines Calder, account: private}
          machines:
            - {id: M52, kind: lift, size: large, rate: 230, status: out}
            - {id: M13, kind: mixer, size: small, rate: 150}
            - {id: M14, kind: mixer, size: small, rate: 300}
            - {id: M17, kind: lift, size: small, rate: 90}
            - {id: M54, kind: mixer, size: large, rate: 70, status: out}
            - {id: M22, kind: lift, size: large, rate: 240, status: out}
          rentals:
            - {id: R61, customer: C22, machine: M52, days: 3, paid: 600}
            - {id: R66, customer: C35, machine: M54, days: 10, paid: 260, due: 20}
            - {id: R32, customer: C24, machine: M22, days: 10, paid: 510, due: 50}
          deposits:
            - {id: R66, amount: 180}
            - {id: R32, amount: 110}
          invoices:
            - {id: I43, customer: C35, rental: R66, amount: 230, age: 20}
            - {id: I26, customer: C24, rental: R32, amount: 190, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R61": {"machine": "M13"},
        },
        "machines": {
            "M52": {"status": "free"},
            "M13": {"status": "out"},
        },
    }


def test_swap_site_smaller_1(x: Any, judge: Any) -> None:
    """!
    query: "Please swap rental R82 to machine M42."
    user_context: |-
      You are Sten Haverly, customer C37 of a rental desk.
      If asked about machine: M42.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C37, name: Sten Haverly, account: site}
            - {id: C30, name: Oona Bright, account: private}
            - {id: C14, name: Ada Quist, account: private}
          machines:
            - {id: M12, kind: saw, size: large, rate: 220, status: out}
            - {id: M42, kind: saw, size: small, rate: 190}
            - {id: M5, kind: roller, size: medium, rate: 240, status: out}
            - {id: M39, kind: mixer, size: medium, rate: 180, status: out}
          rentals:
            - {id: R82, customer: C37, machine: M12, days: 10, paid: 510}
            - {id: R101, customer: C30, machine: M5, days: 5, paid: 480, due: 100}
            - {id: R14, customer: C14, machine: M39, days: 7, paid: 270, due: 100}
          deposits:
            - {id: R101, amount: 160}
            - {id: R14, amount: 190}
          invoices:
            - {id: I44, customer: C30, rental: R101, amount: 110, age: 20}
            - {id: I9, customer: C14, rental: R14, amount: 270, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {
                "rental": "R82",
                "action": "downgrade",
                "decision": "approved",
                "machine": "M12",
                "status": "open",
            },
        },
        "rentals": {
            "R82": {"machine": "M42"},
        },
        "machines": {
            "M12": {"status": "free"},
            "M42": {"status": "out"},
        },
    }


def test_swap_site_smaller_2(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M27 for rental R104."
    user_context: |-
      You are Hal Imber, customer C38 of a rental desk.
      If asked about machine: M27.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C38, name: Hal Imber, account: site}
            - {id: C29, name: Dov Tarn, account: private}
            - {id: C16, name: Jory Pell, account: site}
          machines:
            - {id: M40, kind: loader, size: large, rate: 130, status: out}
            - {id: M27, kind: mixer, size: medium, rate: 270}
            - {id: M6, kind: roller, size: medium, rate: 290, status: out}
            - {id: M49, kind: loader, size: small, rate: 200, status: out}
          rentals:
            - {id: R104, customer: C38, machine: M40, days: 17, paid: 520}
            - {id: R65, customer: C29, machine: M6, days: 5, paid: 370, due: 90}
            - {id: R23, customer: C16, machine: M49, days: 20, paid: 450, due: 100}
          deposits:
            - {id: R65, amount: 160}
            - {id: R23, amount: 180}
          invoices:
            - {id: I14, customer: C29, rental: R65, amount: 190, age: 20}
            - {id: I18, customer: C16, rental: R23, amount: 380, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {
                "rental": "R104",
                "action": "downgrade",
                "decision": "approved",
                "machine": "M40",
                "status": "open",
            },
        },
        "rentals": {
            "R104": {"machine": "M27"},
        },
        "machines": {
            "M40": {"status": "free"},
            "M27": {"status": "out"},
        },
    }


def test_swap_site_smaller_3(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M43 for rental R115."
    user_context: |-
      You are Lev Monk, customer C2 of a rental desk.
      If asked about machine: M43.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C2, name: Lev Monk, account: site}
            - {id: C9, name: Hal Imber, account: site}
            - {id: C32, name: Dov Tarn, account: private}
          machines:
            - {id: M18, kind: roller, size: large, rate: 210, status: out}
            - {id: M43, kind: lift, size: small, rate: 300}
            - {id: M1, kind: lift, size: small, rate: 300, status: out}
            - {id: M13, kind: lift, size: medium, rate: 60, status: out}
          rentals:
            - {id: R115, customer: C2, machine: M18, days: 8, paid: 270}
            - {id: R49, customer: C9, machine: M1, days: 12, paid: 340, due: 10}
            - {id: R67, customer: C32, machine: M13, days: 17, paid: 550, due: 120}
          deposits:
            - {id: R49, amount: 130}
            - {id: R67, amount: 130}
          invoices:
            - {id: I43, customer: C9, rental: R49, amount: 330, age: 20}
            - {id: I36, customer: C32, rental: R67, amount: 190, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {
                "rental": "R115",
                "action": "downgrade",
                "decision": "approved",
                "machine": "M18",
                "status": "open",
            },
        },
        "rentals": {
            "R115": {"machine": "M43"},
        },
        "machines": {
            "M18": {"status": "free"},
            "M43": {"status": "out"},
        },
    }


def test_swap_site_smaller_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "I want another machine for rental R7."
    user_context: |-
      You are Finn Osei, customer C22 of a rental desk.
      If asked about machine: It is M60.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C22, name: Finn Osei, account: site}
            - {id: C1, name: Mina Thole, account: site}
            - {id: C8, name: Bo Larkin, account: private}
          machines:
            - {id: M15, kind: saw, size: large, rate: 130, status: out}
            - {id: M60, kind: roller, size: medium, rate: 210}
            - {id: M9, kind: saw, size: medium, rate: 90}
            - {id: M53, kind: mixer, size: medium, rate: 200}
            - {id: M49, kind: excavator, size: large, rate: 140, status: out}
            - {id: M28, kind: saw, size: large, rate: 300, status: out}
          rentals:
            - {id: R7, customer: C22, machine: M15, days: 14, paid: 280}
            - {id: R99, customer: C1, machine: M49, days: 18, paid: 530, due: 80}
            - {id: R35, customer: C8, machine: M28, days: 12, paid: 330, due: 100}
          deposits:
            - {id: R99, amount: 160}
            - {id: R35, amount: 240}
          invoices:
            - {id: I54, customer: C1, rental: R99, amount: 50, age: 20}
            - {id: I42, customer: C8, rental: R35, amount: 330, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R7", "action": "downgrade", "decision": "approved", "machine": "M15", "status": "open"},
        },
        "rentals": {
            "R7": {"machine": "M60"},
        },
        "machines": {
            "M15": {"status": "free"},
            "M60": {"status": "out"},
        },
    }


def test_swap_site_smaller_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "Please swap the machine of rental R39."
    user_context: |-
      You are Rhea Dunmore, customer C21 of a rental desk.
      If asked about machine: M11.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C21, name: Rhea Dunmore, account: site}
            - {id: C17, name: Mina Thole, account: private}
            - {id: C11, name: Kaia Stroud, account: site}
          machines:
            - {id: M56, kind: mixer, size: medium, rate: 210, status: out}
            - {id: M11, kind: saw, size: small, rate: 220}
            - {id: M7, kind: lift, size: small, rate: 150}
            - {id: M43, kind: lift, size: small, rate: 80}
            - {id: M34, kind: excavator, size: medium, rate: 70, status: out}
            - {id: M40, kind: lift, size: medium, rate: 250, status: out}
          rentals:
            - {id: R39, customer: C21, machine: M56, days: 20, paid: 460}
            - {id: R82, customer: C17, machine: M34, days: 5, paid: 570, due: 30}
            - {id: R87, customer: C11, machine: M40, days: 19, paid: 340, due: 90}
          deposits:
            - {id: R82, amount: 270}
            - {id: R87, amount: 270}
          invoices:
            - {id: I18, customer: C17, rental: R82, amount: 250, age: 20}
            - {id: I8, customer: C11, rental: R87, amount: 380, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {
                "rental": "R39",
                "action": "downgrade",
                "decision": "approved",
                "machine": "M56",
                "status": "open",
            },
        },
        "rentals": {
            "R39": {"machine": "M11"},
        },
        "machines": {
            "M56": {"status": "free"},
            "M11": {"status": "out"},
        },
    }


def test_swap_site_smaller_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "I want another machine for rental R56."
    user_context: |-
      You are Dov Tarn, customer C29 of a rental desk.
      If asked about machine: It is M12.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C29, name: Dov Tarn, account: site}
            - {id: C20, name: Oona Bright, account: private}
            - {id: C32, name: Ada Quist, account: site}
          machines:
            - {id: M59, kind: loader, size: large, rate: 110, status: out}
            - {id: M12, kind: roller, size: medium, rate: 50}
            - {id: M23, kind: loader, size: medium, rate: 220}
            - {id: M53, kind: mixer, size: medium, rate: 50}
            - {id: M56, kind: mixer, size: large, rate: 140, status: out}
            - {id: M33, kind: loader, size: small, rate: 230, status: out}
          rentals:
            - {id: R56, customer: C29, machine: M59, days: 3, paid: 210}
            - {id: R18, customer: C20, machine: M56, days: 12, paid: 550, due: 80}
            - {id: R64, customer: C32, machine: M33, days: 11, paid: 540, due: 110}
          deposits:
            - {id: R18, amount: 240}
            - {id: R64, amount: 200}
          invoices:
            - {id: I53, customer: C20, rental: R18, amount: 340, age: 20}
            - {id: I7, customer: C32, rental: R64, amount: 150, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {
                "rental": "R56",
                "action": "downgrade",
                "decision": "approved",
                "machine": "M59",
                "status": "open",
            },
        },
        "rentals": {
            "R56": {"machine": "M12"},
        },
        "machines": {
            "M59": {"status": "free"},
            "M12": {"status": "out"},
        },
    }


def test_swap_site_denied_1(x: Any, judge: Any) -> None:
    """!
    query: "Please swap rental R31 to machine M57."
    user_context: |-
      You are Ines Calder, customer C23 of a rental desk.
      If asked about machine: It is M57.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C23, name: Ines Calder, account: site}
            - {id: C6, name: Sten Haverly, account: private}
            - {id: C31, name: Jory Pell, account: private}
          machines:
            - {id: M28, kind: lift, size: large, rate: 120, status: out}
            - {id: M57, kind: saw, size: small, rate: 90}
            - {id: M12, kind: saw, size: large, rate: 110, status: out}
            - {id: M30, kind: loader, size: large, rate: 90, status: out}
          rentals:
            - {id: R31, customer: C23, machine: M28, days: 19, paid: 560, manager: denied}
            - {id: R15, customer: C6, machine: M12, days: 4, paid: 580, due: 80}
            - {id: R18, customer: C31, machine: M30, days: 10, paid: 370, due: 150}
          deposits:
            - {id: R15, amount: 270}
            - {id: R18, amount: 280}
          invoices:
            - {id: I28, customer: C6, rental: R15, amount: 120, age: 20}
            - {id: I42, customer: C31, rental: R18, amount: 240, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R31", "action": "downgrade", "decision": "denied", "machine": "M28", "status": "open"},
        },
    }


def test_swap_site_denied_2(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M54 for rental R51."
    user_context: |-
      You are Mina Thole, customer C13 of a rental desk.
      If asked about machine: M54.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C13, name: Mina Thole, account: site}
            - {id: C18, name: Tess Wilkin, account: private}
            - {id: C14, name: Ada Quist, account: private}
          machines:
            - {id: M24, kind: saw, size: large, rate: 300, status: out}
            - {id: M54, kind: lift, size: medium, rate: 150}
            - {id: M26, kind: roller, size: medium, rate: 150, status: out}
            - {id: M49, kind: mixer, size: large, rate: 220, status: out}
          rentals:
            - {id: R51, customer: C13, machine: M24, days: 16, paid: 360, manager: denied}
            - {id: R35, customer: C18, machine: M26, days: 13, paid: 220, due: 40}
            - {id: R23, customer: C14, machine: M49, days: 15, paid: 340, due: 80}
          deposits:
            - {id: R35, amount: 210}
            - {id: R23, amount: 260}
          invoices:
            - {id: I44, customer: C18, rental: R35, amount: 300, age: 20}
            - {id: I31, customer: C14, rental: R23, amount: 390, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R51", "action": "downgrade", "decision": "denied", "machine": "M24", "status": "open"},
        },
    }


def test_swap_site_denied_3(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M13 for rental R25."
    user_context: |-
      You are Ada Quist, customer C8 of a rental desk.
      If asked about machine: M13.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C8, name: Ada Quist, account: site}
            - {id: C39, name: Sten Haverly, account: site}
            - {id: C22, name: Dov Tarn, account: site}
          machines:
            - {id: M51, kind: loader, size: medium, rate: 290, status: out}
            - {id: M13, kind: mixer, size: small, rate: 250}
            - {id: M33, kind: lift, size: small, rate: 170, status: out}
            - {id: M18, kind: excavator, size: large, rate: 260, status: out}
          rentals:
            - {id: R25, customer: C8, machine: M51, days: 17, paid: 600, manager: denied}
            - {id: R90, customer: C39, machine: M33, days: 5, paid: 250, due: 70}
            - {id: R87, customer: C22, machine: M18, days: 8, paid: 430, due: 130}
          deposits:
            - {id: R90, amount: 210}
            - {id: R87, amount: 140}
          invoices:
            - {id: I41, customer: C39, rental: R90, amount: 370, age: 20}
            - {id: I20, customer: C22, rental: R87, amount: 240, age: 20}
    """
    assert changes(x) == {
        "approvals": {
            "AP-1": {"rental": "R25", "action": "downgrade", "decision": "denied", "machine": "M51", "status": "open"},
        },
    }


def test_swap_site_larger_1(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M9 for rental R72."
    user_context: |-
      You are Ada Quist, customer C22 of a rental desk.
      If asked about machine: It is M9.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C22, name: Ada Quist, account: site}
            - {id: C17, name: Hal Imber, account: private}
            - {id: C28, name: Lev Monk, account: site}
          machines:
            - {id: M33, kind: lift, size: small, rate: 170, status: out}
            - {id: M9, kind: lift, size: large, rate: 150}
            - {id: M55, kind: excavator, size: medium, rate: 150, status: out}
            - {id: M25, kind: roller, size: medium, rate: 110, status: out}
          rentals:
            - {id: R72, customer: C22, machine: M33, days: 7, paid: 450}
            - {id: R85, customer: C17, machine: M55, days: 3, paid: 580, due: 20}
            - {id: R68, customer: C28, machine: M25, days: 19, paid: 470, due: 130}
          deposits:
            - {id: R85, amount: 230}
            - {id: R68, amount: 170}
          invoices:
            - {id: I53, customer: C17, rental: R85, amount: 100, age: 20}
            - {id: I44, customer: C28, rental: R68, amount: 300, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R72": {"machine": "M9"},
        },
        "machines": {
            "M33": {"status": "free"},
            "M9": {"status": "out"},
        },
    }


def test_swap_site_larger_2(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M59 for rental R57."
    user_context: |-
      You are Lev Monk, customer C14 of a rental desk.
      If asked about machine: M59.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C14, name: Lev Monk, account: site}
            - {id: C39, name: Mina Thole, account: site}
            - {id: C33, name: Finn Osei, account: site}
          machines:
            - {id: M16, kind: loader, size: small, rate: 300, status: out}
            - {id: M59, kind: excavator, size: medium, rate: 180}
            - {id: M45, kind: lift, size: medium, rate: 120, status: out}
            - {id: M15, kind: excavator, size: large, rate: 180, status: out}
          rentals:
            - {id: R57, customer: C14, machine: M16, days: 15, paid: 490}
            - {id: R16, customer: C39, machine: M45, days: 11, paid: 210, due: 80}
            - {id: R41, customer: C33, machine: M15, days: 14, paid: 440, due: 20}
          deposits:
            - {id: R16, amount: 200}
            - {id: R41, amount: 150}
          invoices:
            - {id: I19, customer: C39, rental: R16, amount: 320, age: 20}
            - {id: I20, customer: C33, rental: R41, amount: 290, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R57": {"machine": "M59"},
        },
        "machines": {
            "M16": {"status": "free"},
            "M59": {"status": "out"},
        },
    }


def test_swap_site_larger_3(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M38 for rental R55."
    user_context: |-
      You are Finn Osei, customer C5 of a rental desk.
      If asked about machine: M38.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C5, name: Finn Osei, account: site}
            - {id: C13, name: Tess Wilkin, account: site}
            - {id: C40, name: Kaia Stroud, account: private}
          machines:
            - {id: M19, kind: saw, size: small, rate: 180, status: out}
            - {id: M38, kind: loader, size: medium, rate: 110}
            - {id: M18, kind: excavator, size: medium, rate: 50, status: out}
            - {id: M9, kind: lift, size: medium, rate: 280, status: out}
          rentals:
            - {id: R55, customer: C5, machine: M19, days: 18, paid: 560}
            - {id: R97, customer: C13, machine: M18, days: 10, paid: 560, due: 130}
            - {id: R25, customer: C40, machine: M9, days: 7, paid: 240, due: 80}
          deposits:
            - {id: R97, amount: 130}
            - {id: R25, amount: 180}
          invoices:
            - {id: I58, customer: C13, rental: R97, amount: 250, age: 20}
            - {id: I9, customer: C40, rental: R25, amount: 100, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R55": {"machine": "M38"},
        },
        "machines": {
            "M19": {"status": "free"},
            "M38": {"status": "out"},
        },
    }


def test_swap_taken_1(x: Any, judge: Any) -> None:
    """!
    query: "I want machine M26 for rental R92."
    user_context: |-
      You are Uwe Brandt, customer C21 of a rental desk.
      If asked about machine: It is M26.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C21, name: Uwe Brandt, account: private}
            - {id: C6, name: Oona Bright, account: site}
            - {id: C22, name: Mina Thole, account: site}
          machines:
            - {id: M55, kind: mixer, size: large, rate: 260, status: out}
            - {id: M26, kind: loader, size: small, rate: 220, status: repair}
            - {id: M2, kind: roller, size: small, rate: 290, status: out}
            - {id: M5, kind: lift, size: medium, rate: 230, status: out}
          rentals:
            - {id: R92, customer: C21, machine: M55, days: 16, paid: 480}
            - {id: R66, customer: C6, machine: M2, days: 11, paid: 200, due: 90}
            - {id: R89, customer: C22, machine: M5, days: 11, paid: 290, due: 80}
          deposits:
            - {id: R66, amount: 240}
            - {id: R89, amount: 130}
          invoices:
            - {id: I60, customer: C6, rental: R66, amount: 130, age: 20}
            - {id: I29, customer: C22, rental: R89, amount: 190, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_swap_taken_2(x: Any, judge: Any) -> None:
    """!
    query: "Please swap rental R1 to machine M2."
    user_context: |-
      You are Rhea Dunmore, customer C20 of a rental desk.
      If asked about machine: It is M2.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C20, name: Rhea Dunmore, account: private}
            - {id: C34, name: Kaia Stroud, account: site}
            - {id: C25, name: Hal Imber, account: private}
          machines:
            - {id: M40, kind: mixer, size: large, rate: 170, status: out}
            - {id: M2, kind: lift, size: small, rate: 60, status: repair}
            - {id: M41, kind: loader, size: small, rate: 200, status: out}
            - {id: M18, kind: lift, size: medium, rate: 270, status: out}
          rentals:
            - {id: R1, customer: C20, machine: M40, days: 10, paid: 530}
            - {id: R49, customer: C34, machine: M41, days: 18, paid: 470, due: 100}
            - {id: R68, customer: C25, machine: M18, days: 14, paid: 340, due: 50}
          deposits:
            - {id: R49, amount: 230}
            - {id: R68, amount: 260}
          invoices:
            - {id: I46, customer: C34, rental: R49, amount: 210, age: 20}
            - {id: I33, customer: C25, rental: R68, amount: 390, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_swap_taken_3(x: Any, judge: Any) -> None:
    """!
    query: "Please swap rental R118 to machine M52."
    user_context: |-
      You are Sten Haverly, customer C3 of a rental desk.
      If asked about machine: It is M52.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C3, name: Sten Haverly, account: private}
            - {id: C32, name: Nils Garrow, account: private}
            - {id: C12, name: Edda Voss, account: site}
          machines:
            - {id: M46, kind: roller, size: large, rate: 90, status: out}
            - {id: M52, kind: roller, size: medium, rate: 240, status: repair}
            - {id: M28, kind: lift, size: medium, rate: 260, status: out}
            - {id: M49, kind: mixer, size: medium, rate: 250, status: out}
          rentals:
            - {id: R118, customer: C3, machine: M46, days: 15, paid: 520}
            - {id: R21, customer: C32, machine: M28, days: 13, paid: 550, due: 110}
            - {id: R110, customer: C12, machine: M49, days: 16, paid: 580, due: 80}
          deposits:
            - {id: R21, amount: 200}
            - {id: R110, amount: 180}
          invoices:
            - {id: I21, customer: C32, rental: R21, amount: 280, age: 20}
            - {id: I15, customer: C12, rental: R110, amount: 280, age: 20}
    """
    assert changes(x) == {}, "the policy forbids it"


def test_swap_best_1(x: Any, judge: Any) -> None:
    """!
    query: "Please swap rental R111 to the best free small machine."
    user_context: |-
      You are Sten Haverly, customer C17 of a rental desk.
      If asked about rental: R111.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C17, name: Sten Haverly, account: private}
            - {id: C4, name: Bo Larkin, account: site}
            - {id: C25, name: Oona Bright, account: site}
          machines:
            - {id: M4, kind: lift, size: small, rate: 300}
            - {id: M28, kind: excavator, size: small, rate: 270}
            - {id: M6, kind: loader, size: small, rate: 150}
            - {id: M54, kind: roller, size: large, rate: 60, status: out}
            - {id: M57, kind: roller, size: medium, rate: 300, status: out}
            - {id: M58, kind: saw, size: small, rate: 140, status: out}
          rentals:
            - {id: R111, customer: C17, machine: M57, days: 15, paid: 440}
            - {id: R85, customer: C4, machine: M54, days: 8, paid: 250, due: 60}
            - {id: R77, customer: C25, machine: M58, days: 11, paid: 230, due: 150}
          deposits:
            - {id: R85, amount: 190}
            - {id: R77, amount: 140}
          invoices:
            - {id: I26, customer: C4, rental: R85, amount: 200, age: 20}
            - {id: I48, customer: C25, rental: R77, amount: 380, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R111": {"machine": "M4"},
        },
        "machines": {
            "M57": {"status": "free"},
            "M4": {"status": "out"},
        },
    }


def test_swap_best_2(x: Any, judge: Any) -> None:
    """!
    query: "Please swap rental R82 to the best free medium machine."
    user_context: |-
      You are Lev Monk, customer C12 of a rental desk.
      If asked about rental: It is R82.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C12, name: Lev Monk, account: private}
            - {id: C40, name: Oona Bright, account: private}
            - {id: C23, name: Jory Pell, account: site}
          machines:
            - {id: M46, kind: excavator, size: medium, rate: 90}
            - {id: M24, kind: lift, size: medium, rate: 150}
            - {id: M2, kind: roller, size: small, rate: 300, status: out}
            - {id: M7, kind: loader, size: large, rate: 220, status: out}
            - {id: M44, kind: lift, size: medium, rate: 160}
            - {id: M42, kind: excavator, size: small, rate: 270, status: out}
          rentals:
            - {id: R82, customer: C12, machine: M42, days: 19, paid: 350}
            - {id: R85, customer: C40, machine: M2, days: 6, paid: 360, due: 10}
            - {id: R49, customer: C23, machine: M7, days: 5, paid: 470, due: 150}
          deposits:
            - {id: R85, amount: 120}
            - {id: R49, amount: 110}
          invoices:
            - {id: I47, customer: C40, rental: R85, amount: 290, age: 20}
            - {id: I12, customer: C23, rental: R49, amount: 200, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R82": {"machine": "M44"},
        },
        "machines": {
            "M42": {"status": "free"},
            "M44": {"status": "out"},
        },
    }


def test_swap_best_3(x: Any, judge: Any) -> None:
    """!
    query: "I want the best free medium machine for rental R87."
    user_context: |-
      You are Bo Larkin, customer C11 of a rental desk.
      If asked about rental: It is R87.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C11, name: Bo Larkin, account: private}
            - {id: C12, name: Jory Pell, account: private}
            - {id: C7, name: Uwe Brandt, account: private}
          machines:
            - {id: M7, kind: loader, size: small, rate: 230, status: out}
            - {id: M56, kind: mixer, size: medium, rate: 260}
            - {id: M6, kind: excavator, size: small, rate: 90, status: out}
            - {id: M26, kind: excavator, size: medium, rate: 220}
            - {id: M50, kind: mixer, size: small, rate: 90, status: out}
            - {id: M57, kind: roller, size: medium, rate: 190}
          rentals:
            - {id: R87, customer: C11, machine: M50, days: 11, paid: 460}
            - {id: R62, customer: C12, machine: M6, days: 15, paid: 370, due: 20}
            - {id: R9, customer: C7, machine: M7, days: 13, paid: 270, due: 110}
          deposits:
            - {id: R62, amount: 110}
            - {id: R9, amount: 250}
          invoices:
            - {id: I26, customer: C12, rental: R62, amount: 330, age: 20}
            - {id: I1, customer: C7, rental: R9, amount: 90, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R87": {"machine": "M56"},
        },
        "machines": {
            "M50": {"status": "free"},
            "M56": {"status": "out"},
        },
    }


def test_swap_budget_ask_1(x: Any, judge: Any) -> None:
    """!
    query: "I want a large machine within my budget for rental R59."
    user_context: |-
      You are Kaia Stroud, customer C17 of a rental desk.
      If asked about budget or limit: 120.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C17, name: Kaia Stroud, account: private}
            - {id: C33, name: Bo Larkin, account: private}
            - {id: C13, name: Ada Quist, account: private}
          machines:
            - {id: M7, kind: mixer, size: small, rate: 290, status: out}
            - {id: M1, kind: loader, size: large, rate: 130}
            - {id: M51, kind: excavator, size: large, rate: 50}
            - {id: M2, kind: saw, size: large, rate: 270, status: out}
            - {id: M53, kind: roller, size: large, rate: 60, status: out}
            - {id: M5, kind: roller, size: large, rate: 100}
          rentals:
            - {id: R59, customer: C17, machine: M53, days: 6, paid: 400}
            - {id: R9, customer: C33, machine: M7, days: 9, paid: 260, due: 30}
            - {id: R61, customer: C13, machine: M2, days: 18, paid: 500, due: 100}
          deposits:
            - {id: R9, amount: 230}
            - {id: R61, amount: 150}
          invoices:
            - {id: I19, customer: C33, rental: R9, amount: 300, age: 20}
            - {id: I18, customer: C13, rental: R61, amount: 120, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R59": {"machine": "M5"},
        },
        "machines": {
            "M53": {"status": "free"},
            "M5": {"status": "out"},
        },
    }


def test_swap_budget_ask_2(x: Any, judge: Any) -> None:
    """!
    query: "Please swap rental R6 to the best medium machine within my budget."
    user_context: |-
      You are Lev Monk, customer C11 of a rental desk.
      If asked about budget or limit: 120.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C11, name: Lev Monk, account: private}
            - {id: C13, name: Gita Rowe, account: site}
            - {id: C40, name: Ada Quist, account: site}
          machines:
            - {id: M5, kind: mixer, size: large, rate: 120, status: out}
            - {id: M14, kind: lift, size: medium, rate: 150, status: out}
            - {id: M50, kind: loader, size: medium, rate: 50}
            - {id: M35, kind: loader, size: medium, rate: 170}
            - {id: M23, kind: lift, size: medium, rate: 170, status: out}
            - {id: M6, kind: roller, size: medium, rate: 110}
          rentals:
            - {id: R6, customer: C11, machine: M14, days: 19, paid: 440}
            - {id: R20, customer: C13, machine: M23, days: 20, paid: 590, due: 50}
            - {id: R117, customer: C40, machine: M5, days: 7, paid: 420, due: 80}
          deposits:
            - {id: R20, amount: 100}
            - {id: R117, amount: 160}
          invoices:
            - {id: I3, customer: C13, rental: R20, amount: 210, age: 20}
            - {id: I59, customer: C40, rental: R117, amount: 200, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R6": {"machine": "M6"},
        },
        "machines": {
            "M14": {"status": "free"},
            "M6": {"status": "out"},
        },
    }


def test_swap_budget_ask_3(x: Any, judge: Any) -> None:
    """!
    query: "Please swap rental R18 to the best large machine within my budget."
    user_context: |-
      You are Gita Rowe, customer C13 of a rental desk.
      If asked about budget or limit: It is 210.
    init:
      rental_desk:
        data_patch:
          customers:
            - {id: C13, name: Gita Rowe, account: private}
            - {id: C40, name: Sten Haverly, account: private}
            - {id: C8, name: Finn Osei, account: site}
          machines:
            - {id: M43, kind: loader, size: large, rate: 110, status: out}
            - {id: M60, kind: mixer, size: large, rate: 180}
            - {id: M1, kind: mixer, size: small, rate: 240, status: out}
            - {id: M54, kind: roller, size: large, rate: 200}
            - {id: M18, kind: mixer, size: medium, rate: 180, status: out}
            - {id: M5, kind: roller, size: large, rate: 230}
          rentals:
            - {id: R18, customer: C13, machine: M43, days: 14, paid: 460}
            - {id: R99, customer: C40, machine: M18, days: 5, paid: 480, due: 40}
            - {id: R46, customer: C8, machine: M1, days: 15, paid: 270, due: 60}
          deposits:
            - {id: R99, amount: 150}
            - {id: R46, amount: 230}
          invoices:
            - {id: I14, customer: C40, rental: R99, amount: 340, age: 20}
            - {id: I37, customer: C8, rental: R46, amount: 290, age: 20}
    """
    assert changes(x) == {
        "rentals": {
            "R18": {"machine": "M54"},
        },
        "machines": {
            "M43": {"status": "free"},
            "M54": {"status": "out"},
        },
    }
