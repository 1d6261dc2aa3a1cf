"""Stages as functions: the decorator `stage`."""

from __future__ import annotations

import inspect
import os
import re
import typing
from collections.abc import Callable
from typing import Any, overload

from . import codec
from .delivery import Delivery
from .errors import PayloadError
from .task import BaseTask

_registered: list[StageFunction] = []


class StageFunction:
    """A function that serves a stage. Calling it calls the function."""

    def __init__(self, function: Callable[..., Any], name: str | None, batch: int) -> None:
        self.function = function
        self.named = name is not None
        self.name = name or function.__name__
        self.batch = batch
        self.on_end: Callable[..., Any] | None = None
        self.is_class = inspect.isclass(function)
        handler: Any = getattr(function, "__call__") if self.is_class else function
        self.is_async = inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler)
        self.is_generator = inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler)
        self.arguments = _Arguments(handler, skip_self=self.is_class)
        if batch < 1:
            raise ValueError(f"stage {self.name}: batch {batch}, want at least 1")
        if batch > 1 and (self.is_generator or self.is_class):
            raise TypeError(f"stage {self.name}: a batch is for a function that returns a list of outputs")
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def end(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function that is called with the task when a request's inputs have ended.

        It may emit, return an output, or be a generator of outputs.
        """
        if (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)) != self.is_async:
            raise TypeError(f"stage {self.name}: the handler and its end must both be async, or neither")
        self.on_end = function
        return function

    @property
    def has_end(self) -> bool:
        """Whether a function is called when a request's inputs have ended."""
        return self.on_end is not None or (self.is_class and hasattr(self.function, "end"))

    def callables(self, task: BaseTask) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
        """The functions that handle the deliveries of a task, and its end."""
        if not self.is_class:
            return self.function, self.on_end
        made = task._handler_object  # one object for each request
        if made is None:
            made = task._handler_object = self.function()
        return made, self.on_end or getattr(made, "end", None)


class _Arguments:
    """The parameters of a handler."""

    def __init__(self, f: Callable[..., Any], skip_self: bool) -> None:
        try:
            hints = typing.get_type_hints(f)
        except Exception:  # annotations that cannot be resolved are ignored
            hints = {}
        parameters = list(inspect.signature(f).parameters.values())[1 if skip_self else 0 :]
        self.values: list[Any] = []  # the annotations of the values, in order
        self.names: list[str] = []  # of those parameters
        self.rest: Any = None  # that of *values
        self.roles: list[str] = []
        for p in parameters:
            hint = hints.get(p.name)
            if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) or (p.default is not p.empty and p.name not in _ROLES):
                continue
            if p.kind is p.VAR_POSITIONAL:
                self.rest = hint or object
            elif p.name in ("task", "tasks") or (isinstance(hint, type) and issubclass(hint, BaseTask)):
                self.roles.append("task")
            elif p.name in ("delivery", "deliveries") or hint is Delivery:
                self.roles.append("delivery")
            else:
                self.roles.append("value")
                self.values.append(hint)
                self.names.append(p.name)

    def order(self, stages: list[str]) -> list[int]:
        """For a join of these stages, in the order of its edges: the index of the stage for each value. Raises ValueError if
        the parameters do not fit."""
        ids = [re.sub(r"\W", "_", s) for s in stages]
        order = [ids.index(n) for n in self.names if n in ids]
        there = f"the stage joins {', '.join(stages)}"
        if order and len(order) < len(self.names):
            strange = ", ".join(n for n in self.names if n not in ids)
            raise ValueError(f"the handler has the parameters {', '.join(self.names)}, and {there}: {strange} is no stage. Name all after stages, or none")
        order = order or list(range(min(len(self.names), len(ids))))
        left = [i for i in range(len(ids)) if i not in order]
        if self.rest is not None:
            return order + left
        if self.names and (left or len(self.names) > len(ids)):
            raise ValueError(f"the handler takes {len(self.names)} values, and {there}: give it a parameter for each, or *values")
        return order

    def bind(self, task: Any, deliveries: Any, values: list[Any]) -> list[Any]:
        """The arguments of one call."""
        rest = iter(values)
        named = {"task": task, "delivery": deliveries}
        try:
            args = [next(rest) if role == "value" else named[role] for role in self.roles]
        except StopIteration:
            raise TypeError(f"the handler takes {len(self.values)} values, there are {len(values)}") from None
        more = list(rest)
        if more and self.rest is None and self.values:
            raise TypeError(f"the handler takes {len(self.values)} values, there are {len(values)}")
        return args + (more if self.rest is not None else [])

    def decode(self, d: Delivery, i: int) -> Any:
        """The i-th value, in the type of its annotation."""
        hint = self.values[i] if i < len(self.values) else self.rest
        return decode_as(d, hint)


_ROLES = ("task", "tasks", "delivery", "deliveries")


def decode_as(d: Delivery, hint: Any) -> Any:
    """A delivery's value for a parameter with an annotation."""
    if d.bare:
        return None
    if hint is memoryview and d.codec == codec.RAW:
        return d._data()[0]
    v = d.value()
    if hint is str and isinstance(v, bytes):
        try:
            return v.decode()
        except UnicodeDecodeError as e:
            raise PayloadError(f"the payload is not UTF-8: {e}") from None
    if getattr(hint, "__name__", "") == "ndarray" and hasattr(v, "numpy"):
        return v.numpy()
    return v


@overload
def stage(name: Callable[..., Any], /) -> StageFunction: ...
@overload
def stage(name: str | None = None, /, *, batch: int = 1) -> Callable[[Callable[..., Any]], StageFunction]: ...
def stage(name: Any = None, /, *, batch: int = 1) -> Any:
    """Make a function serve a stage: `@stage`, `@stage("name")`, `@stage(batch=8)`.

    The function takes the decoded value of a delivery. At a stage that joins, it
    takes one value of each stage before it: by name, if the parameters have the names
    of these stages, else in the order in which the pipeline lists the edges. Its result is
    emitted, unless it is None; a generator's values are emitted as it yields them. A
    parameter named `task` gets the Task, one named `delivery` the Delivery. With `batch`
    it takes a list of up to `batch` values, of several requests, and returns as many
    outputs; `tasks` and `deliveries` are then lists too. `async` functions run on an event
    loop, several at once.

    A class is instantiated for each request, without arguments; its `__call__`
    handles deliveries, and its `end(task)`, if there is one, the end.
    """
    if callable(name):
        return _register(name, None, batch)
    return lambda f: _register(f, name, batch)


def _register(f: Callable[..., Any], name: str | None, batch: int) -> StageFunction:
    s = StageFunction(f, name, batch)
    _registered.append(s)
    return s


def choose(given: tuple[StageFunction, ...]) -> list[tuple[str, StageFunction]]:
    """The stages to serve, with their names on the bus: those given, or else all decorated.

    A process that the host started for one stage, $OMNIBUS_STAGE, serves only
    that one: by the function of that name, or by the only function.
    """
    have = list(given) or list(_registered)
    if not have:
        raise ValueError("no stage to serve: decorate a function with @stage")
    wanted = os.environ.get("OMNIBUS_STAGE")
    if not wanted:
        return [(s.name, s) for s in have]
    for s in have:
        if s.name == wanted:
            return [(wanted, s)]
    if len(have) == 1:
        return [(wanted, have[0])]
    raise ValueError(f"the host wants stage {wanted!r}; there are {', '.join(repr(s.name) for s in have)}")
