"""Writes docs/values.md from `valuelist`: the test in codec/internal/codectest compares, and writes it with -update."""

from __future__ import annotations

from valuelist import ARRIVES, NONE, REFUSED, ROWS, Answers

PAGE = """\
# Values

For programs in Python that send values: how each kind arrives. A value either arrives as the table says, or its sender
raises `PayloadError` with the path to it, such as `at ['outputs'][3]`, and sends nothing. The `put` of a connector then
returns False and logs the error.

| column | the value is |
|---|---|
| msgpack | emitted or submitted with no tensor beside it, or by `codec=omnibus.MSGPACK` |
| bundle | emitted or submitted with tensors in it or beside it, or put into a `TensorQueue` |
| connectors | put through a connector, in mode `ring` or `segment` |
| tensor | emitted or submitted alone, and is a tensor |
| through Go | decoded by a Go process into an `any`, and sent on in the same format |

| answer | |
|---|---|
| equal | it arrives with its type, order and bits |
| a type, or other words | it arrives as this type |
| refused | its sender raises `PayloadError` |
| the same | a Go process in the middle changes nothing but the order of keys |
| msgpack is refused by Go | decoding msgpack into an `any` is an error that names the key; Python processes get the value |

{table}

- At most 64 containers are nested; two of them are the item of a `TensorQueue`.
- With torch installed, a connector returns a `Tensor` as a `torch.Tensor`, unless that torch lacks the element type. A
  tensor of torch is sent if `omnibus.Tensor` has its element type.
- Without NumPy, a connector returns an `ndarray` as a `Tensor` or, if `Tensor` lacks the element type, as the `dict` that
  travels. Without Pillow, it returns an image as that `dict`. If the `dict` is put again, an array or image arrives.
- Attributes of a subclass of `dict`, `list` or `ndarray`, the `info` of an image, and the name of a dataclass are not
  sent.
- Where vLLM is loaded, a connector returns a `dict` with the keys of one of vLLM's outputs as that output, without other
  keys, as vLLM-Omni's serializer does.
- vLLM-Omni's own connectors cannot read a `dict` that has `__tensor__` alone.

The list of values is `clients/python/tests/valuelist.py`. Tests send each in every way, alone and inside of
containers. After a change of the list, `go test ./codec/internal/codectest -update` writes this page.
"""

HEAD = ("value", "msgpack", "bundle", "connectors", "tensor", "through Go")


def shown(answer: str) -> str:
    if answer == NONE:
        return ""
    return answer if answer == REFUSED else ARRIVES[answer].text


def through_go(a: Answers) -> str:
    if {a.msgpack, a.bundle, a.omni} == {REFUSED}:
        return ""
    return a.go or "the same"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def table() -> str:
    lines = [line(*HEAD), "|" + "---|" * len(HEAD)]
    for section, rows in ROWS:
        lines.append(line(f"**{section}**", *[""] * (len(HEAD) - 1)))
        for r in rows:
            a = r.answers
            lines.append(line(r.name, *map(shown, (a.msgpack, a.bundle, a.omni, a.tensor)), through_go(a)))
    return "\n".join(lines)


if __name__ == "__main__":
    print(PAGE.format(table=table()), end="")
