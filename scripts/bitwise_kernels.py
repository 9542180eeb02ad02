"""Which kernels give one token other bits when it is computed beside others?

    python scripts/bitwise_kernels.py --json kernels.json

For each dtype, of 64 random tokens, how many come out equal to the bit ...

    linear, more rows       ... alone and as the first of 2, 5 and 9 rows of one matrix product
    linear, another row     ... as the first and as each other of the nine rows of products of one shape
    packed, ...             ... the same through packed=True's kernel (CPU)
    eager / sdpa, more rows        ... attending alone and as the first of 2, 5 and 9 queries
    eager / sdpa, more slots       ... attending to their keys alone and to the same keys among masked slots
    eager / sdpa, another row      ... as the first and as each other of nine queries over one number of slots

`invariant=True` needs only the "another row" lines; where one of them is not 64 of 64, it cannot be exact there.
Shapes are SmolLM2-135M's (hidden 576, 9 heads of 64, inner 1536). One sdpa call here is one head group without
grouped-query expansion. The thread count is torch's own (set OMP_NUM_THREADS).
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from decoder.files import write_json
from decoder.models.packed import BlockedLinear, why_not

TOKENS, FIXED = 64, 9
WIDTHS = (2, 5, FIXED)
HIDDEN, INNER, HEADS, HEAD = 576, 1536, 9, 64
SLOTS, SPARE = 200, 73  # keys each token sees; masked slots beside them
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def eager(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """Scores, a mask that is added, a float32 softmax: transformers' eager attention."""
    bias = torch.zeros(seen.shape, dtype=query.dtype, device=query.device)
    scores = query @ key.transpose(-1, -2) * HEAD**-0.5 + bias.masked_fill(~seen, torch.finfo(query.dtype).min)
    return torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype) @ value


def sdpa(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value, attn_mask=seen)


def share(first: Sequence[Tensor], others: Sequence[Sequence[Tensor]]) -> int:
    """Tokens whose values are the same in every arrangement."""
    return sum(all(torch.equal(one, each) for each in rest) for one, rest in zip(first, others, strict=True))


def linear_counts(name: str, dtype: torch.dtype, device: str) -> dict[str, int]:
    """name: "linear", or "packed" for the blocked layout."""
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(INNER, HIDDEN, generator=generator) / HIDDEN**0.5).to(device, dtype)
    tokens = torch.randn(TOKENS, 1, HIDDEN, generator=generator).to(device, dtype)
    company = torch.randn(FIXED, HIDDEN, generator=generator).to(device, dtype)
    layer = nn.Linear(HIDDEN, INNER, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    multiply = BlockedLinear(layer) if name == "packed" else lambda rows: linear(rows, weight)

    def among(token: Tensor, width: int, place: int = 0) -> Tensor:
        rows = company[:width].clone()
        rows[place] = token[0]
        return multiply(rows)[place]

    alone = [multiply(token)[0] for token in tokens]
    first = [among(token, FIXED) for token in tokens]
    return {
        f"{name}, more rows": share(alone, [[among(token, width) for width in WIDTHS] for token in tokens]),
        f"{name}, another row": share(first, [[among(t, FIXED, place) for place in range(1, FIXED)] for t in tokens]),
    }


def attention_counts(attend: Attention, dtype: torch.dtype, device: str) -> dict[str, int]:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    queries = random(TOKENS, HEADS, HEAD)
    company = random(1, HEADS, FIXED, HEAD)
    key, value = random(1, HEADS, SLOTS + SPARE, HEAD), random(1, HEADS, SLOTS + SPARE, HEAD)

    def among(query: Tensor, width: int, slots: int, place: int = 0) -> Tensor:
        rows = company[:, :, :width].clone()
        rows[0, :, place] = query
        seen = torch.ones(1, 1, width, slots, dtype=torch.bool, device=device)
        seen[..., SLOTS:] = False
        return attend(rows, key[:, :, :slots], value[:, :, :slots], seen)[0, :, place]

    alone = [among(query, 1, SLOTS) for query in queries]
    first = [among(query, FIXED, SLOTS + SPARE) for query in queries]
    places = range(1, FIXED)
    name = attend.__name__
    return {
        f"{name}, more rows": share(alone, [[among(q, width, SLOTS) for width in WIDTHS] for q in queries]),
        f"{name}, more slots": share(alone, [[among(q, 1, SLOTS + n) for n in (1, 8, SPARE)] for q in queries]),
        f"{name}, another row": share(first, [[among(q, FIXED, SLOTS + SPARE, at) for at in places] for q in queries]),
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cpu")
    made.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    made.add_argument("--json", type=Path, default=None)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    counts = {}
    with torch.inference_mode():
        for name in args.dtypes:
            dtype = getattr(torch, name)
            counts[name] = linear_counts("linear", dtype, args.device)
            if args.device == "cpu" and why_not(dtype) is None:
                counts[name] |= linear_counts("packed", dtype, args.device)
            for attend in (eager, sdpa):
                counts[name] |= attention_counts(attend, dtype, args.device)
    about = {
        "torch": torch.__version__,
        "device": args.device,
        "processor": platform.processor() or platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "tokens": TOKENS,
    }
    print(f"{'equal to the bit, of ' + str(TOKENS):28}", *(f"{name:>10}" for name in counts))
    for line in dict.fromkeys(line for found in counts.values() for line in found):
        print(f"{line:28}", *(f"{found.get(line, '-'):>10}" for found in counts.values()))
    if args.json is not None:
        write_json(args.json, {"about": about, "counts": counts})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
