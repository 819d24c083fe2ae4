"""Every flow of QoS 1 and 2, both roles, as two transition tables (3.1.1 and 5, sections 4.3 and 4.4).

They know no bytes and no storage. A state and an event give the next state and an action, for `session.py` and `inbound.py`.
firmware/DESIGN.md shows the tables, drawn from here by `python -m host_tests.session.flows`.

Sender:    PUBLISH -> [AWAIT_PUBACK] -> PUBACK                                                QoS 1
           PUBLISH -> [AWAIT_PUBREC] -> PUBREC -> mark, PUBREL -> [AWAIT_PUBCOMP] -> PUBCOMP  QoS 2
                                     -> PUBACK                                                taken at QoS 1
Receiver:  PUBLISH -> hold, PUBREC -> [HELD] -> PUBREL -> hand over, discard, PUBCOMP         QoS 2

The two roles' packet ids are independent. The sender's states are kept for one connection; that PUBREC was seen is a mark in the
store. The receiver's state is in the store: HELD if it is held.
"""

from flashmqtt.compat import const

# The sender's states. (`session.py` repeats these; a test compares them.)
_NONE = const(0)  # not sent on this connection, or finished, or an unknown id
_AWAIT_PUBACK = const(1)
_AWAIT_PUBREC = const(2)
_AWAIT_PUBCOMP = const(3)

# The receiver's states: _NONE and
_HELD = const(1)

# Actions.
_NOTHING = const(0)  # nothing to do; also a repetition with no answer
_VIOLATION = const(1)  # the wrong flow's packet: the connection ends, the flow stays where it is [MQTT-4.8.0-1]
_DONE = const(2)  # finish: delivered, or refused (5) [MQTT-4.3.2-1]; 5: [MQTT-4.3.2-3] [MQTT-4.3.3-5]
_MARK = const(3)  # make durable that PUBREC was seen, then PUBREL [MQTT-4.3.3-1]; 5: [MQTT-4.3.3-3] [MQTT-4.3.3-4]
_PUT_PUBREL = const(4)  # answer a repeated or unknown PUBREC: never with PUBLISH [MQTT-4.3.3-1]; 5: [MQTT-4.3.3-6]
_HOLD = const(5)  # store, then PUBREC; not handed over yet [MQTT-4.3.3-2]; 5: [MQTT-4.3.3-8]
_PUT_PUBREC = const(6)  # a repeated PUBLISH: answered, not stored twice [MQTT-4.3.3-2]; 5: [MQTT-4.3.3-10]
_HAND_OVER = const(7)  # to the application; once it is taken, discard, then PUBCOMP; 5: [MQTT-4.3.3-11] [MQTT-4.3.3-12]
_PUT_PUBCOMP = const(8)  # a PUBREL for an id that is not held: an earlier PUBCOMP was lost
_HAND_OVER_FIRST = const(9)  # the broker lost its session, and reuses the id: hand over the old message first

# fmt: off
# A row for each state, a column for each event: the next state << 4 | the action.
SENDER = bytes((
    # 0: a connection begins, 1: PUBLISH of QoS 1 is put, 2: PUBLISH of QoS 2 is put, 3: PUBREL is put;
    # 4: PUBACK, 5: PUBREC, 6: PUBREC that refuses (5), 7: PUBCOMP came
    # NONE
    _NONE << 4, _AWAIT_PUBACK << 4, _AWAIT_PUBREC << 4, _AWAIT_PUBCOMP << 4,
    _NONE << 4 | _NOTHING, _NONE << 4 | _PUT_PUBREL, _NONE << 4 | _NOTHING, _NONE << 4 | _NOTHING,
    # AWAIT_PUBACK
    _NONE << 4, _AWAIT_PUBACK << 4, _AWAIT_PUBACK << 4 | _VIOLATION, _AWAIT_PUBACK << 4 | _VIOLATION,
    _NONE << 4 | _DONE, _AWAIT_PUBACK << 4 | _VIOLATION, _AWAIT_PUBACK << 4 | _VIOLATION, _AWAIT_PUBACK << 4 | _VIOLATION,
    # AWAIT_PUBREC
    _NONE << 4, _AWAIT_PUBREC << 4 | _VIOLATION, _AWAIT_PUBREC << 4, _AWAIT_PUBCOMP << 4,
    # (PUBACK: a broker that takes QoS 2 at QoS 1, as RabbitMQ does. It has the message, and will not answer otherwise.)
    _NONE << 4 | _DONE, _AWAIT_PUBCOMP << 4 | _MARK, _NONE << 4 | _DONE, _AWAIT_PUBREC << 4 | _VIOLATION,
    # AWAIT_PUBCOMP
    _NONE << 4, _AWAIT_PUBCOMP << 4 | _VIOLATION, _AWAIT_PUBCOMP << 4 | _VIOLATION, _AWAIT_PUBCOMP << 4,
    _AWAIT_PUBCOMP << 4 | _VIOLATION, _AWAIT_PUBCOMP << 4 | _PUT_PUBREL, _AWAIT_PUBCOMP << 4 | _PUT_PUBREL, _NONE << 4 | _DONE,
))

# The store keeps the receiver's state, and only `hold` and `discard` change it: the table says what they have to do.
RECEIVER = bytes((
    # 0: PUBLISH, 1: PUBLISH with the bytes that are held, 2: PUBREL came
    # NONE
    _HELD << 4 | _HOLD, _NONE << 4 | _NOTHING, _NONE << 4 | _PUT_PUBCOMP,
    # HELD (NONE, as soon as the application has taken what it is handed)
    _NONE << 4 | _HAND_OVER_FIRST, _HELD << 4 | _PUT_PUBREC, _NONE << 4 | _HAND_OVER,
))
# fmt: on
