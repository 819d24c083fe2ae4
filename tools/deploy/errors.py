"""The error of the deployment tools."""

from tools.command import Failure


class DeployFailed(Failure):
    """The command can't continue; the text says why and what to do."""
