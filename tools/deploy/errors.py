"""The error of the deployment tools."""


class DeployFailed(Exception):
    """The command can't continue; the text says why and what to do."""
