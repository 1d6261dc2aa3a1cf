"""A stage that passes on what it gets, by reference."""

from faultpoint import hit
from omnibus import Delivery, Task, run, stage
from payload import INPUT, verify


@stage
def forward(task: Task, delivery: Delivery) -> None:
    """Pass the payload on."""
    hit("stage-begin")
    with delivery.view() as view:
        try:
            verify(view, INPUT, delivery.seq)
        except ValueError as e:
            print(f"broken delivery {delivery.seq}: {e}", flush=True)
            raise
    task.forward(delivery)
    hit("stage-emitted")


run(threads=4)
