"""Every flow of QoS 1 and 2, both roles, as one table (3.1.1 and 5, sections 4.3 and 4.4).

It knows no bytes and no storage: a state and a packet's type give an action, and `session.py` carries the actions out.

Sender:    PUBLISH -> [AWAIT_PUBACK] -> PUBACK                                   QoS 1
           PUBLISH -> [AWAIT_PUBREC] -> PUBREC -> mark, PUBREL -> [AWAIT_PUBCOMP] -> PUBCOMP     QoS 2
Receiver:  PUBLISH -> hold, PUBREC -> [HELD] -> PUBREL -> hand over, release, PUBCOMP            QoS 2

The two roles' ids are independent: the columns PUBLISH and PUBREL look an id up among the held, the other three among the sent.
"""

from flashmqtt.compat import const

# States of a slot; NONE: no slot has this id. (A constant with an underscore costs a board nothing; `session.py` has the same
# ones again, and a test compares them.)
_NONE = const(0)
_AWAIT_PUBACK = const(1)
_AWAIT_PUBREC = const(2)
_AWAIT_PUBCOMP = const(3)
_HELD = const(4)

# Actions.
_IGNORE = const(0)  # a repetition that needs no answer
_VIOLATION = const(
    1
)  # an acknowledgement of the wrong flow: the connection ends, the flow stays where it is [MQTT-4.8.0-1]
_DONE = const(2)  # release the slot: delivered [MQTT-4.3.2-1]; 5: [MQTT-4.3.2-3] [MQTT-4.3.3-5]
_REMEMBER = const(3)  # make durable that PUBREC was seen, then PUBREL [MQTT-4.3.3-1]; 5: [MQTT-4.3.3-3] [MQTT-4.3.3-4]
_PUT_PUBREL = const(4)  # answer a repeated or unknown PUBREC: never with PUBLISH [MQTT-4.3.3-1]; 5: [MQTT-4.3.3-6]
_HOLD = const(5)  # store, then PUBREC; not handed over yet [MQTT-4.3.3-2]; 5: [MQTT-4.3.3-8]
_PUT_PUBREC = const(6)  # a repeated PUBLISH: answered, not stored twice [MQTT-4.3.3-2]; 5: [MQTT-4.3.3-10]
_HAND_OVER = const(7)  # to the application, then release, then PUBCOMP; 5: [MQTT-4.3.3-11] [MQTT-4.3.3-12]
_PUT_PUBCOMP = const(8)  # a PUBREL for an id that is not held: an earlier PUBCOMP was lost

# A row has a column for each of PUBLISH .. PUBCOMP, types 3 .. 7.

# fmt: off
TRANSITIONS = bytes((
    # PUBLISH    PUBACK      PUBREC       PUBREL        PUBCOMP         (PUBLISH: of QoS 2)
    _HOLD,       _IGNORE,    _PUT_PUBREL, _PUT_PUBCOMP, _IGNORE,      # NONE
    _VIOLATION,  _DONE,      _VIOLATION,  _VIOLATION,   _VIOLATION,   # AWAIT_PUBACK
    _VIOLATION,  _VIOLATION, _REMEMBER,   _VIOLATION,   _VIOLATION,   # AWAIT_PUBREC
    _VIOLATION,  _VIOLATION, _PUT_PUBREL, _VIOLATION,   _DONE,        # AWAIT_PUBCOMP
    _PUT_PUBREC, _VIOLATION, _VIOLATION,  _HAND_OVER,   _VIOLATION,   # HELD
))
# fmt: on
