"""Every flow of QoS 1 and 2, both roles, as one table (3.1.1 and 5, sections 4.3 and 4.4).

It knows no bytes and no storage: a state and a packet's type give an action, and `session.py` carries the actions out.

Sender:    PUBLISH -> [AWAIT_PUBACK] -> PUBACK                                   QoS 1
           PUBLISH -> [AWAIT_PUBREC] -> PUBREC -> mark, PUBREL -> [AWAIT_PUBCOMP] -> PUBCOMP     QoS 2
Receiver:  PUBLISH -> hold, PUBREC -> [HELD] -> PUBREL -> hand over, release, PUBCOMP            QoS 2

The two roles' ids are independent: the columns PUBLISH and PUBREL look an id up among the held, the other three among the sent.
"""

from flashmqtt.compat import const

# States of a slot. NONE: no slot has this id.
NONE = const(0)
AWAIT_PUBACK = const(1)
AWAIT_PUBREC = const(2)
AWAIT_PUBCOMP = const(3)
HELD = const(4)

# Actions.
IGNORE = const(0)  # a repetition that needs no answer
VIOLATION = const(1)  # an acknowledgement of the wrong flow: the connection ends, the flow stays where it is
DONE = const(2)  # release the slot: delivered
REMEMBER = const(3)  # make durable that PUBREC was seen, then PUBREL [MQTT-4.3.3-1]
PUT_PUBREL = const(4)  # answer a repeated or unknown PUBREC: never with PUBLISH [MQTT-4.3.3-1]
HOLD = const(5)  # store, then PUBREC; not handed over yet [MQTT-4.3.3-2]
PUT_PUBREC = const(6)  # a repeated PUBLISH: answered, not stored twice [MQTT-4.3.3-2]
HAND_OVER = const(7)  # to the application, then release, then PUBCOMP
PUT_PUBCOMP = const(8)  # a PUBREL for an id that is not held: an earlier PUBCOMP was lost

COLUMNS = const(5)  # PUBLISH .. PUBCOMP are types 3 .. 7

# fmt: off
TRANSITIONS = bytes((
    # PUBLISH   PUBACK     PUBREC      PUBREL       PUBCOMP        (PUBLISH: of QoS 2)
    HOLD,       IGNORE,    PUT_PUBREL, PUT_PUBCOMP, IGNORE,      # NONE
    VIOLATION,  DONE,      VIOLATION,  VIOLATION,   VIOLATION,   # AWAIT_PUBACK
    VIOLATION,  VIOLATION, REMEMBER,   VIOLATION,   VIOLATION,   # AWAIT_PUBREC
    VIOLATION,  VIOLATION, PUT_PUBREL, VIOLATION,   DONE,        # AWAIT_PUBCOMP
    PUT_PUBREC, VIOLATION, VIOLATION,  HAND_OVER,   VIOLATION,   # HELD
))
# fmt: on
