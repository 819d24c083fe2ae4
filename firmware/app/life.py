"""The life of a device: a random number in every message, which distinguishes devices and journals with the same device id.

The journal counts sequence numbers and boots. With a new journal (a wiped flash, another size, another chip with the same id)
both begin again at 1, and the receiver would take new messages for duplicates of old ones. So a new life begins with an empty
journal, and its number is durable before the first message is stored. It is kept in the state file beside the journal. If only
that file is lost, or the device id has changed, a new life begins in the middle of the journal's numbers. Then `since` has its
first number, because the earlier numbers are of another life, or of another id. A new life also discards what has a number of
the old life: the last command, whose reply has one, and the notes about drops and worn flash.

It knows neither the journal nor MQTT.
"""


def life_of(state, stored, device, random_bytes=None):
    """Return (life, since): the number, 1 to 2^30 - 1, and the sequence number of its first message; save a new one.

    Args:
        state: a `State`.
        stored: how many messages the journal has numbered.
        device: the device id.
        random_bytes: returns n random bytes; the chip's by default.

    If the state can't be saved, the life is 0, which means none, and messages omit it.
    """
    life = state.get("life")
    since = state.get("since")
    intent = state.get("intent")  # of the last command: see `commands`
    # If the journal is empty, a saved life belongs to an older journal, or to an interrupted first start. If it has not even the
    # messages before the last command, it was restored from a backup: this life has already used the next numbers.
    known = state.get("device", device) == device and not (intent and intent["seq"] > stored + 1)
    if stored and known and isinstance(life, int) and isinstance(since, int) and 0 < since <= stored:
        return life, since
    if intent and not (stored and intent["seq"] == stored + 1):
        intent = None  # it is finished; the new journal will use its number for another message
    if random_bytes is None:
        from os import urandom as random_bytes
    life = int.from_bytes(random_bytes(4), "big") >> 2 or 1
    since = stored + 1
    try:
        state.save(life=life, since=since, device=device, intent=intent, dropped_from=None, worn=None)
    except OSError as error:
        print("state:", error)
        return 0, 0
    return life, since
