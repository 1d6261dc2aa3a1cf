"""The smallest stage in Python."""

from omnibus import run, stage


@stage
def upper(text: str) -> str:
    return text.upper()


run()
