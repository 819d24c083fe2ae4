"""The life of a device: a random number that every message carries, so that two devices under one id are never taken for one.

Sequence numbers and boots are counted by the journal. When it is made anew (a wiped flash, another size, another chip under
the same id), both begin again at 1, and the far end would take new messages for copies of old ones. So a life begins where
nothing has a number yet, and its number is durable before the first message is stored. It is kept beside the journal,
in the state: where only that file is lost, a new life begins in the middle of the journal's numbers, and `since` says where.

It knows neither the journal nor MQTT.
"""


def life_of(state, stored, random_bytes=None):
    """Return (life, since): the number, 1 to 2^30 - 1, and the sequence number of its first message; a new one is saved.

    Args:
        state: a `State`.
        stored: how many messages the journal has numbered.
        random_bytes: returns n random bytes; the chip's by default.

    Where the state can't be saved the life is 0, none, which messages do not carry.
    """
    life = state.get("life")
    since = state.get("since")
    # With nothing numbered a life that is known belongs to an older journal, or to a start that was cut off.
    if stored and isinstance(life, int) and isinstance(since, int) and 0 < since <= stored:
        return life, since
    if random_bytes is None:
        from os import urandom as random_bytes
    life = int.from_bytes(random_bytes(4), "big") >> 2 or 1
    since = stored + 1
    try:
        state.save(life=life, since=since)
    except OSError as error:
        print("state:", error)
        return 0, 0
    return life, since
