"""`megalith loadtest`."""


def loadtest() -> None:
    """Soon."""
