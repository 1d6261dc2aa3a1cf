"""The stages of the conformance suite, as a thin client does them."""

import time

from omnibus import run, stage


@stage
def upper(text: str) -> str:
    return text.upper()


@stage
def twice(text: str):
    yield text + "1"
    yield text + "2"


@stage
def total(text: str, task) -> None:
    task.state["n"] = task.state.get("n", 0) + 1


@total.end
def _(task):
    task.emit(f"total {task.state.get('n', 0)}")


@stage
def concat(a: str, b: str) -> str:
    return a + "+" + b


@stage
def picky(text: str) -> str:
    if text == "bad":
        raise ValueError("I do not like it")
    return text


@stage
def stuck(text: str, task) -> None:
    if not task.wait_aborted(60):
        raise TimeoutError("the request was not aborted")


@stage
def add(data: memoryview, task) -> None:
    with task.reserve(len(data)) as room:
        for i, b in enumerate(data[:16]):
            room.view[i] = b + 1
        room.view[16 : len(data)] = data[16:]
        room.send(len(data))


@stage
def nest(value) -> object:
    return {"again": [value["small"], value["large"]], "step": value["step"] + 1}


@stage
def relay(delivery, task) -> None:
    task.forward(delivery, key=delivery.key, attrs=delivery.attrs)


run()
