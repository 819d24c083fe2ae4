"""Write the golden vectors (`host_tests/vectors/*.jsonl`), each checked against a codec that is not ours.

    python -m tools.proof.check.vectors            write the files anew
    python -m tools.proof.check.vectors --check    say what differs from the files, and fail if anything does

A vector is what a person read out of the standard: a packet's fields, or bytes that are malformed and why. The bytes of valid
packets come from npm's mqtt-packet, never from the code under test. Where the standard leaves freedom (a reason code 0 left out
or not) the shortest form stands as `hex` and mqtt-packet's as `also`; mqtt-packet must read both as the same packet. For
malformed bytes, `second` records what mqtt-packet says of them. Needs npm; the tests that use the files do not.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "host_tests" / "vectors"
NPM = ROOT / "build" / "npm"
MQTT_PACKET = "mqtt-packet@9.0.2"

Json = dict[str, Any]

PROPERTY_NAMES = {
    0x01: "payloadFormatIndicator",
    0x02: "messageExpiryInterval",
    0x03: "contentType",
    0x08: "responseTopic",
    0x09: "correlationData",
    0x0B: "subscriptionIdentifier",
    0x11: "sessionExpiryInterval",
    0x12: "assignedClientIdentifier",
    0x13: "serverKeepAlive",
    0x15: "authenticationMethod",
    0x16: "authenticationData",
    0x17: "requestProblemInformation",
    0x18: "willDelayInterval",
    0x19: "requestResponseInformation",
    0x1A: "responseInformation",
    0x1C: "serverReference",
    0x1F: "reasonString",
    0x21: "receiveMaximum",
    0x22: "topicAliasMaximum",
    0x23: "topicAlias",
    0x24: "maximumQoS",
    0x25: "retainAvailable",
    0x26: "userProperties",
    0x27: "maximumPacketSize",
    0x28: "wildcardSubscriptionAvailable",
    0x29: "subscriptionIdentifiersAvailable",
    0x2A: "sharedSubscriptionAvailable",
}
BINARY = (0x09, 0x16)
BOOLEAN = (0x01, 0x17, 0x19, 0x25, 0x28, 0x29, 0x2A)

USER = [0x26, ["site", "north"]]
REASON = [0x1F, "because"]


def of_level(clauses: str, level: int) -> list[str]:
    """Return the clause ids that hold at a level: "4:" before one means levels 3 and 4, "5:" level 5."""
    mine = "5:" if level == 5 else "4:"
    return [name.removeprefix(mine) for name in clauses.split() if name[1] != ":" or name.startswith(mine)]


def valid_packets() -> list[Json]:
    """Return every valid packet: name, level, who sends it, clauses, put (the function) and fields."""
    found: list[Json] = []

    def add(name: str, levels: tuple[int, ...], sender: str, put: str, clauses: str = "", **fields: Any) -> None:
        for level in levels:
            title = f"{put} {name} ({level})"
            vector = {"name": title, "level": level, "from": sender, "clause": of_level(clauses, level), "put": put}
            found.append(vector | {"fields": dict(fields)})

    every, old = (3, 4, 5), (3, 4)
    # CONNECT
    absent = "4:MQTT-3.1.2-11 4:MQTT-3.1.2-13 4:MQTT-3.1.2-15 4:MQTT-3.1.2-18 4:MQTT-3.1.2-20 5:MQTT-2.2.2-1 "
    absent += "5:MQTT-3.1.2-11 5:MQTT-3.1.2-13 5:MQTT-3.1.2-16 5:MQTT-3.1.2-18 "
    always = absent + "MQTT-3.1.2-1 MQTT-3.1.2-3 MQTT-3.1.3-1 MQTT-3.1.3-3 MQTT-3.1.3-4"
    add("plain", every, "client", "connect", always, client_id="dev", keep_alive_s=60)
    add("not clean", every, "client", "connect", "", client_id="dev", clean=False)
    add("keep alive at its end", every, "client", "connect", "", client_id="d", keep_alive_s=65535)
    add("no client id", (4, 5), "client", "connect", "4:MQTT-3.1.3-7", client_id="")
    add("longest client id of 3.1", every, "client", "connect", "MQTT-3.1.3-4", client_id="abcdefghijklmnopqrstuvw")
    add("user", every, "client", "connect",
        "4:MQTT-3.1.2-19 5:MQTT-3.1.2-17 4:MQTT-3.1.3-11 5:MQTT-3.1.3-12", client_id="d", user="jo")  # fmt: skip
    add(
        "user and password",
        every,
        "client",
        "connect",
        "4:MQTT-3.1.2-21 5:MQTT-3.1.2-19",
        client_id="d",
        user="jo",
        password="00ff",
    )
    add("empty user and password", every, "client", "connect", "", client_id="d", user="", password="")
    for qos in (0, 1, 2):
        for retain in (False, True):
            add(
                f"will qos {qos} retain {int(retain)}",
                every,
                "client",
                "connect",
                "MQTT-3.1.2-9 4:MQTT-3.1.2-14 5:MQTT-3.1.2-12 4:MQTT-3.1.3-10 5:MQTT-3.1.3-11",
                client_id="d",
                will_topic="gone/d",
                will_payload="01ff",
                will_qos=qos,
                will_retain=retain,
            )
    add("will without payload", every, "client", "connect", "MQTT-3.1.2-9", client_id="d", will_topic="w")
    add(
        "everything",
        every,
        "client",
        "connect",
        "MQTT-3.1.3-1",
        client_id="Maß",
        clean=False,
        keep_alive_s=258,
        user="jö",
        password="70",
        will_topic="温度/1",
        will_payload="67",
        will_qos=1,
        will_retain=True,
    )
    add(
        "every property",
        (5,),
        "client",
        "connect",
        "",
        client_id="d",
        properties=[
            [0x11, 4294967295],
            [0x21, 65535],
            [0x27, 268435460],
            [0x22, 10],
            [0x19, 1],
            [0x17, 0],
            USER,
            [0x15, "SCRAM-SHA-1"],
            [0x16, "00ff"],
        ],
    )
    add(
        "every will property",
        (5,),
        "client",
        "connect",
        "MQTT-3.1.2-9",
        client_id="d",
        will_topic="w",
        will_payload="78",
        will_properties=[
            [0x18, 5],
            [0x01, 1],
            [0x02, 3600],
            [0x03, "text/plain"],
            [0x08, "re/ply"],
            [0x09, "c0de"],
            USER,
        ],
    )
    add("password without user", (5,), "client", "connect", "", client_id="d", password="70",
        by_hand="101100044d5154540542000000000164000170")  # fmt: skip
    # CONNACK
    add("accepted", every, "server", "connack", "5:MQTT-3.2.2-1", session_present=False, code=0)
    add("session present", (4, 5), "server", "connack", "5:MQTT-3.2.2-1", session_present=True, code=0)
    for code in range(1, 6):
        add(f"refused {code}", old, "server", "connack", "MQTT-3.2.2-4", session_present=False, code=code)
    for code in (
        0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97,
        0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
    ):  # fmt: skip
        add(
            f"refused {code:#x}",
            (5,),
            "server",
            "connack",
            "MQTT-3.2.2-6 MQTT-3.2.2-8",
            session_present=False,
            code=code,
        )
    add(
        "every property",
        (5,),
        "server",
        "connack",
        "",
        session_present=False,
        code=0,
        properties=[
            [0x11, 3600],
            [0x21, 16],
            [0x24, 1],
            [0x25, 0],
            [0x27, 65536],
            [0x12, "auto-1"],
            [0x22, 8],
            REASON,
            USER,
            [0x26, ["site", "south"]],
            [0x28, 1],
            [0x29, 0],
            [0x2A, 1],
            [0x13, 30],
            [0x1A, "re/"],
            [0x1C, "other:1883"],
            [0x15, "X"],
            [0x16, "01"],
        ],
    )
    # PUBLISH
    add("of the documents", every, "both", "publish", "MQTT-3.3.2-1", topic="a/b", payload="", qos=1, packet_id=10)
    for qos, packet_id in ((0, 0), (1, 1), (2, 65535)):
        for retain in (False, True):
            for dup in (False, True):
                if dup and not qos:
                    continue
                add(
                    f"qos {qos} retain {int(retain)} dup {int(dup)}",
                    every,
                    "both",
                    "publish",
                    "MQTT-3.3.1-2 MQTT-3.3.1-4 4:MQTT-2.3.1-1 4:MQTT-2.3.1-5 5:MQTT-2.2.1-2 5:MQTT-2.2.1-3",
                    topic="flashmqtt/board/temp",
                    payload="32312e35",
                    qos=qos,
                    retain=retain,
                    dup=dup,
                    packet_id=packet_id,
                )
    for n in (120, 121, 122, 123, 124, 125, 126, 127, 128, 321, 16378, 16379, 16380, 16381):
        if n < 16000:
            add(f"payload of {n}", every, "both", "publish", "5:MQTT-1.5.5-1", topic="t/é", payload="5a" * n)
        else:
            add(
                f"payload of {n}",
                (4,),
                "both",
                "publish",
                "",
                topic="t",
                payload={"repeat": "5a", "times": n},
            )
    add(
        "topic of every UTF-8 length",
        every,
        "both",
        "publish",
        "4:MQTT-1.5.3-1 5:MQTT-1.5.4-1",
        topic="$é€𝄞\ufeff\x7f/ /",
        payload="00",
    )
    add(
        "topic with U+FEFF first",
        every,
        "both",
        "publish",
        "4:MQTT-1.5.3-3 5:MQTT-1.5.4-3",
        topic="\ufeffa",
        payload="00",
    )
    add(
        "topic by the surrogates",
        every,
        "both",
        "publish",
        "4:MQTT-1.5.3-1 5:MQTT-1.5.4-1",
        topic="\ud7ff\ue000\U0010ffff",
        payload="",
    )
    add(
        "every property",
        (5,),
        "both",
        "publish",
        "MQTT-3.3.2-13 MQTT-3.3.2-14 MQTT-3.3.2-19",
        topic="t",
        payload="6869",
        qos=1,
        packet_id=7,
        properties=[
            [0x01, 1],
            [0x02, 4294967295],
            [0x08, "re/ply"],
            [0x09, "00ff"],
            USER,
            [0x26, ["site", "x"]],
            [0x03, "text/plain"],
        ],
    )
    add("subscription identifiers", (5,), "server", "publish", "", topic="t", payload="",
        properties=[[0x0B, 1], [0x0B, 128], [0x0B, 268435455]])  # fmt: skip
    add("payload of a long property block", (5,), "both", "publish", "MQTT-1.5.5-1", topic="t", payload="6869",
        properties=[[0x03, "x" * 125]])  # fmt: skip
    add(
        "alias beside its topic",
        (5,),
        "both",
        "publish",
        "MQTT-3.3.2-8",
        topic="t",
        payload="00",
        properties=[[0x23, 1]],
    )
    # acknowledgements
    for put in ("puback", "pubrec", "pubrel", "pubcomp"):
        clauses = {
            "puback": "5:MQTT-3.4.2-1", "pubrec": "5:MQTT-3.5.2-1", "pubrel": "MQTT-3.6.1-1 5:MQTT-3.6.2-1",
            "pubcomp": "5:MQTT-3.7.2-1",
        }[put]  # fmt: skip
        for packet_id in (1, 255, 256, 4660, 65535):
            add(f"of {packet_id}", every, "both", put, clauses, packet_id=packet_id)
        codes = (0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99) if put in ("puback", "pubrec") else (0x92,)
        for code in codes:
            add(f"code {code:#x}", (5,), "both", put, clauses, packet_id=2, code=code)
        add("properties", (5,), "both", put, clauses, packet_id=2, code=codes[-1], properties=[REASON, USER])
        add("code 0 and properties", (5,), "both", put, clauses, packet_id=2, code=0, properties=[USER])
        add("a long property block", (5,), "both", put, "MQTT-1.5.5-1", packet_id=2, code=codes[0],
            properties=[[0x1F, "r" * 130]])  # fmt: skip
    add("again", (3,), "both", "pubrel", "", packet_id=1, dup=True, by_hand="6a020001")
    # SUBSCRIBE and its answer
    for qos in (0, 1, 2):
        add(
            f"qos {qos}",
            every,
            "client",
            "subscribe",
            "MQTT-3.8.1-1 MQTT-3.8.3-1 4:MQTT-3-8.3-4",
            packet_id=10,
            filters=[["a/b", qos]],
        )
    add("several filters", every, "client", "subscribe",
        "4:MQTT-3.8.3-3 5:MQTT-3.8.3-2 4:MQTT-4.7.1-2 4:MQTT-4.7.1-3 5:MQTT-4.7.1-1 5:MQTT-4.7.1-2", packet_id=11,
        filters=[["a/b", 1], ["c/+/d", 2], ["#", 0], ["+", 1], ["/+/#", 0], ["$SYS/#", 0]])  # fmt: skip
    add("again", (3,), "client", "subscribe", "", packet_id=1, filters=[["a", 0]], dup=True)
    add("options", (5,), "client", "subscribe", "MQTT-3.8.3-5 MQTT-4.8.2-1", packet_id=12,
        filters=[["a", 0x04], ["b", 0x09], ["c", 0x12], ["d", 0x2E], ["$share/g/a/#", 0x21]])  # fmt: skip
    add("properties", (5,), "client", "subscribe", "", packet_id=13, filters=[["a", 1]], properties=[[0x0B, 300], USER])
    add("a result", every, "server", "suback", "", packet_id=10, codes=[1])
    add("results", old, "server", "suback", "MQTT-3.9.3-1 MQTT-3.9.3-2", packet_id=11, codes=[0, 1, 2, 0x80])
    add("every result", (5,), "server", "suback", "MQTT-3.9.3-1 MQTT-3.9.3-2", packet_id=11,
        codes=[0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2], properties=[REASON, USER])  # fmt: skip
    # UNSUBSCRIBE and its answer
    add(
        "filters",
        every,
        "client",
        "unsubscribe",
        "MQTT-3.10.1-1 MQTT-3.10.3-1",
        packet_id=10,
        filters=["a/b", "c/+", "#"],
    )
    add("again", (3,), "client", "unsubscribe", "", packet_id=10, filters=["a"], dup=True)
    add("properties", (5,), "client", "unsubscribe", "", packet_id=10, filters=["$share/g/a"], properties=[USER])
    add("done", old, "server", "unsuback", "", packet_id=10, codes=[])
    add("every result", (5,), "server", "unsuback", "MQTT-3.11.3-1 MQTT-3.11.3-2", packet_id=10,
        codes=[0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91], properties=[REASON, USER])  # fmt: skip
    # the rest
    add("ask", every, "client", "pingreq", "")
    add("answer", every, "server", "pingresp", "")
    add("plain", every, "client", "disconnect", "MQTT-3.14.1-1 5:MQTT-3.14.2-1", code=0)
    add("with will", (5,), "client", "disconnect", "MQTT-3.14.2-1", code=4)
    add("expiry", (5,), "client", "disconnect", "", code=0, properties=[[0x11, 0], REASON, USER])
    for code in (
        0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B,
        0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    ):  # fmt: skip
        add(f"by the server {code:#x}", (5,), "server", "disconnect", "MQTT-3.14.2-1", code=code)
    add("moved", (5,), "server", "disconnect", "", code=0x9D, properties=[[0x1C, "other"], REASON, USER])
    add("done", (5,), "server", "auth", "MQTT-3.15.1-1", code=0)
    add(
        "go on",
        (5,),
        "server",
        "auth",
        "MQTT-3.15.2-1",
        code=0x18,
        properties=[[0x15, "X"], [0x16, "0102"], REASON, USER],
    )
    add("again", (5,), "client", "auth", "MQTT-3.15.2-1", code=0x19, properties=[[0x15, "X"]])
    return found


def second_properties(properties: list) -> Json:
    """Return properties as mqtt-packet takes them."""
    result: Json = {}
    for identifier, value in properties:
        key = PROPERTY_NAMES[identifier]
        if identifier == 0x26:
            result.setdefault(key, {}).setdefault(value[0], []).append(value[1])
        elif identifier == 0x0B:
            result.setdefault(key, []).append(value)
        elif identifier in BINARY:
            result[key] = {"$hex": value}
        elif identifier in BOOLEAN:
            result[key] = bool(value)
        else:
            result[key] = value
    if len(result.get("subscriptionIdentifier", [])) == 1:
        result["subscriptionIdentifier"] = result["subscriptionIdentifier"][0]
    return result


def payload_hex(payload: "str | Json") -> str:
    """Return a vector's payload as one hex string."""
    return payload if isinstance(payload, str) else payload["repeat"] * payload["times"]


def second_packet(vector: Json) -> Json:
    """Return the packet of a vector as mqtt-packet takes it."""
    fields, level = vector["fields"], vector["level"]
    packet: Json = {"cmd": vector["put"]}
    if "properties" in fields:
        packet["properties"] = second_properties(fields["properties"])
    if "packet_id" in fields:
        packet["messageId"] = fields["packet_id"]
    packet["reasonCode"] = packet["returnCode"] = fields.get("code", 0)
    if vector["put"] == "connect":
        packet |= {
            "protocolId": "MQIsdp" if level == 3 else "MQTT",
            "protocolVersion": level,
            "clean": fields.get("clean", True),
            "clientId": fields["client_id"],
            "keepalive": fields.get("keep_alive_s", 0),
        }
        if "user" in fields:
            packet["username"] = fields["user"]
        if "password" in fields:
            packet["password"] = {"$hex": fields["password"]}
        if "will_topic" in fields:
            packet["will"] = {
                "topic": fields["will_topic"],
                "payload": {"$hex": fields.get("will_payload", "")},
                "qos": fields.get("will_qos", 0),
                "retain": fields.get("will_retain", False),
            }
            if "will_properties" in fields:
                packet["will"]["properties"] = second_properties(fields["will_properties"])
    elif vector["put"] == "publish":
        packet |= {key: fields.get(key, 0) for key in ("qos", "dup", "retain")}
        packet |= {"topic": fields["topic"], "payload": {"$hex": payload_hex(fields["payload"])}}
    elif vector["put"] == "connack":
        packet["sessionPresent"] = fields["session_present"]
    elif vector["put"] == "subscribe":
        packet["subscriptions"] = [
            {"topic": topic, "qos": o & 3, "nl": bool(o & 4), "rap": bool(o & 8), "rh": o >> 4}
            for topic, o in fields["filters"]
        ]
    elif vector["put"] == "unsubscribe":
        packet["unsubscriptions"] = fields["filters"]
    if "codes" in fields:
        packet["granted"] = fields["codes"]
    if "dup" in fields:
        packet["dup"] = fields["dup"]
    return packet


def shortest(vector: Json, hexed: str) -> str:
    """Return the packet without what level 5 allows to be left out: an empty property length, then a code 0."""
    if vector["level"] != 5 or "properties" in vector["fields"]:
        return hexed
    body = bytes.fromhex(hexed)
    head = {"puback": 4, "pubrec": 4, "pubrel": 4, "pubcomp": 4, "disconnect": 2, "auth": 2}.get(vector["put"])
    if head is None or len(body) == head:
        return hexed
    code = vector["fields"].get("code", 0)
    tail = body[:head] + (bytes([code]) if code else b"")
    return bytes([tail[0], len(tail) - 2, *tail[2:]]).hex()


class Second:
    """npm's mqtt-packet in a process of its own."""

    def __init__(self) -> None:
        if not (NPM / "node_modules" / "mqtt-packet").exists():
            NPM.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "install", "--silent", "--no-save", "--prefix", str(NPM), MQTT_PACKET], check=True)
        self._node = subprocess.Popen(
            ["node", str(Path(__file__).with_suffix(".mjs")), str(NPM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> Json:
        """Return the answer to one request."""
        assert self._node.stdin is not None and self._node.stdout is not None
        print(json.dumps(request), file=self._node.stdin, flush=True)
        return json.loads(self._node.stdout.readline())


def without_lengths(packets: list[Json]) -> list[Json]:
    """Return what mqtt-packet read, less what depends on the form of the packet."""
    return [
        {k: v for k, v in packet.items() if k not in ("length", "properties") or (k == "properties" and v)}
        for packet in packets
    ]


def section(first_byte: int, level: int) -> str:
    """Return the section that a packet's type is described in: chapter 3 of 3.1.1 and 5 has one for each, in their order."""
    kind = first_byte >> 4
    if kind == 0 or (kind == 15 and level < 5):
        return "2.1.2" if level == 5 else "2.2.1"  # reserved
    return f"3.{kind}"


def finish_valid(second: Second) -> list[Json]:
    """Give the valid vectors their bytes."""
    for vector in (found := valid_packets()):
        by_hand = vector["fields"].pop("by_hand", None)
        if by_hand:  # mqtt-packet does not write what the standard allows: level 5's password without user, 3.1's PUBREL with DUP
            vector["hex"] = by_hand
            continue
        answer = second.ask(level=vector["level"], packet=second_packet(vector))
        if "error" in answer:
            raise SystemExit(f"{vector['name']}: mqtt-packet does not write it: {answer['error']}")
        vector["hex"] = shortest(vector, answer["hex"])
        read = second.ask(level=vector["level"], hex=vector["hex"])
        if vector["hex"] != answer["hex"]:
            vector["also"] = [answer["hex"]]
            other = second.ask(level=vector["level"], hex=answer["hex"])
            if vector["put"] == "auth":  # §3.15.2.1 allows no code at all; mqtt-packet does not read that
                continue
            if "packets" not in read or without_lengths(read["packets"]) != without_lengths(other["packets"]):
                raise SystemExit(f"{vector['name']}: mqtt-packet reads the short form differently: {read} {other}")
        repeated = vector["level"] == 3 and vector["fields"].get(
            "dup"
        )  # 3.1's DUP of a SUBSCRIBE: written, but not read
        if not repeated and (len(read.get("packets", ())) != 1 or read["left"]):
            raise SystemExit(f"{vector['name']}: mqtt-packet does not read it: {read}")
        if isinstance(vector["fields"].get("payload"), dict):  # too long to stand in a file
            payload = payload_hex(vector["fields"]["payload"])
            assert vector["hex"].endswith(payload)
            vector["hex"] = vector["hex"][: -len(payload)]
            vector["then"] = vector["fields"]["payload"]
    for vector in found:
        vector["section"] = section(int(vector["hex"][:2], 16), vector["level"])
    return found


def finish_malformed(second: Second) -> list[Json]:
    """Give the malformed vectors the second opinion on them."""
    found = [json.loads(line) for line in (FOLDER / "malformed.jsonl").read_text(encoding="utf-8").splitlines()]
    for vector in found:
        answer = second.ask(level=vector["level"], hex=vector["hex"].replace(" ", ""))
        vector["section"] = section(int(vector["hex"][:2], 16), vector["level"])
        vector["second"] = "refuses" if "error" in answer else "accepts" if answer["packets"] else "waits"
    return found


def main() -> int:
    """Write or check the files."""
    arguments = argparse.ArgumentParser(
        prog="python -m tools.proof.check.vectors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--check", action="store_true")
    check = arguments.parse_args().check
    second = Second()
    differing = 0
    for name, vectors in (("valid", finish_valid(second)), ("malformed", finish_malformed(second))):
        path = FOLDER / f"{name}.jsonl"
        text = "".join(json.dumps(vector, ensure_ascii=False) + "\n" for vector in vectors)
        differs = check and path.read_text(encoding="utf-8") != text
        differing += differs
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(vectors)} vectors" + (", not these" if differs else ""))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
