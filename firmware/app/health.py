"""The board's health as SenML records, for the operator."""

import gc


def records(application):
    """Return the health records of a running application."""
    journal = application.journal
    link = application.client.link
    found = [
        {"n": "uptime", "u": "s", "v": application.uptime.ms() // 1000},
        {"n": "waiting", "v": journal.waiting},
        {"n": "stored", "v": journal.stored},
        {"n": "dropped", "v": journal.dropped},
        {"n": "damaged", "v": journal.damaged},
        {"n": "refused", "v": application.outcomes.counts["refused"] if application.outcomes else 0},
        {"n": "expired", "v": application.outcomes.counts["expired"] if application.outcomes else 0},
        {"n": "commands_refused", "v": application.commands.refused},
        {"n": "connects", "v": link.connects},
        {"n": "oversize", "v": application.client.oversize},
        {"n": "wear", "v": journal.wear},
    ]
    if hasattr(gc, "mem_free"):  # CPython has none
        gc.collect()  # otherwise garbage counts as used
        found.append({"n": "heap_free", "u": "B", "v": gc.mem_free()})
    strength = application.board.network_strength()
    if strength is not None:
        found.append({"n": "rssi", "u": "dBm", "v": strength})
    millivolts = application.board.supply_millivolts()
    if millivolts is not None:
        found.append({"n": "supply", "u": "V", "v": millivolts / 1000})
    return found
