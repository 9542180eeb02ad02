"""Whether a model is still the one that something was derived from: asked at every call.

A model that is run as it is may change: what is new is what runs (`CausalModel.check_unchanged` asks for the little
that may not). What was derived from it does not follow: `packed` runs a copy, and graphs of `compile` do not look at
hooks. So the modules are remembered, and a change of them is refused by name. A few milliseconds for some hundred
modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from decoder.models.hf import check_no_dropout

# torch's own bookkeeping, seen to below; and modes that change nothing in a forward without dropout and gradients.
_NO_SETTINGS = frozenset(vars(nn.Module())) | {"training", "gradient_checkpointing"}
_SETTINGS = "changed its settings"


class Origin:
    """One model as the caller gave it.

    packed: the copy that packed=True made of it; None where compile=True made graphs of the model itself.
    """

    def __init__(self, model: Any, role: str, packed: Any = None) -> None:
        self._model, self._role, self._packed = model, role, packed
        self._derived = "compile=True" if packed is None else "packed=True"
        self._modules = dict(_remembered(model))

    def check(self) -> None:
        """Is it still that model?

        Raises:
            ValueError: naming what has changed, and the remedy.
        """
        check_no_dropout(self._model, self._role)
        found = dict(_remembered(self._model))
        changes = [
            (name, _difference(self._modules.get(name), found.get(name)))
            for name in dict.fromkeys((*self._modules, *found))
            if self._modules.get(name) != found.get(name)
        ]
        if changes:
            name, what = min(changes, key=lambda change: change[1] == _SETTINGS)  # what tells most, first
            raise ValueError(
                f"{self._derived}: module {name!r} of the {self._role} {what} since the decoder was built, which would "
                "not be seen; build it again."
            )
        if self._packed is not None:
            from decoder.models.packed import check_unchanged

            check_unchanged(self._packed)


class _Same:
    """Equal only to itself: what is compared by identity, and kept alive so that no other can take its place."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing

    __hash__ = None  # type: ignore[assignment]


def _remembered(model: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, what decides its forward) of each module."""
    for name, module in model.named_modules():
        held = vars(module)
        passing = module._non_persistent_buffers_set  # made anew as positions grow
        buffers = {key: part for key, part in held["_buffers"].items() if key not in passing}
        private = ("_",) if _is_transformers_own(type(module)) else ()  # its notes to itself
        settings = {key: _settings(part) for key, part in held.items() if not key.startswith(private)}
        hooks = [*held["_forward_pre_hooks"].values(), *held["_forward_hooks"].values()]
        yield (
            name,
            {
                "was replaced": _Same(module),
                "got another forward": _Same(held.get("forward")),
                "got or lost a hook": [_Same(hook) for hook in hooks if not _is_transformers_own(hook)],
                "got other tensors": {key: _Same(part) for key, part in {**held["_parameters"], **buffers}.items()},
                _SETTINGS: {key: value for key, value in settings.items() if key not in _NO_SETTINGS},
            },
        )


def _is_transformers_own(thing: Any) -> bool:
    """Its classes, and its hooks that collect hidden states: put in by the first call that asks, and left there."""
    return str(getattr(thing, "__module__", "")).startswith("transformers.")


def _settings(value: Any) -> Any:
    """An attribute that is a switch, a factor, a name or a collection of such, frozen; None for any other.

    Adapters say so whether and how they are on. Whole numbers by themselves are left out: some modules count.
    """
    if isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, dict):
        items = [*value, *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = [*value]
    else:
        return None
    return items if all(isinstance(item, (bool, int, float, str)) for item in items) else None


def _difference(before: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    if before is None or now is None:
        return "was added" if before is None else "was taken away"
    return next(what for what in before if before[what] != now[what])
