"""What models are called in pictures."""


def short(model: str) -> str:
    """A model's name in figures.

    >>> short("organism/causal")
    'causal'
    """
    return model.removeprefix("organism/")
