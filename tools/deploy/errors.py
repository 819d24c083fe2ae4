"""What can go wrong between a person and a board, in words that say what to do."""


class DeployFailed(Exception):
    """It can't go on; the text says why and what to do."""
