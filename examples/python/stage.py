"""The smallest stage in Python."""

from omnibus import run, stage


@stage
def upper(text: str) -> str:
    return text.upper()


if __name__ == "__main__":
    run()
