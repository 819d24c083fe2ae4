"""What the application does with worn flash, after it has delivered all stored messages. Loaded only then.

The failure may be a transient one, such as that of a weak supply, and a restart mounts the journal anew. But a board whose flash
is really worn must not restart again and again: a person has to replace it. So the next such restart needs new messages.
"""

from flashmqtt.compat import const
from flashmqtt.errors import StoreError

_LEAST = const(100)  # messages from one restart to the next


def restart(application, error):
    """Restart the board, if it has stored enough messages since the last such restart.

    Args:
        application: an `Application`.
        error: the `StoreWorn`, which is raised if the board does not restart.
    """
    stored = application.journal.stored
    if stored - application.state.get("worn", -_LEAST) < _LEAST:
        raise error
    try:
        application.state.save(worn=stored)
    except OSError:
        raise error
    print("journal: StoreWorn %s; restart" % error)
    try:
        application._finish()
    except StoreError:
        pass
    application.board.reset()
