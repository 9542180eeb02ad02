#!/usr/bin/env python
"""How long m tokens take through the matrices of one model shape, by the kernel that multiplies.

    python scripts/float32_kernels.py --out experiments/08-where-time-goes/float32-kernels
    python scripts/float32_kernels.py --dtype bfloat16 --layers 36

A verification of m tokens is only cheap where t(m) is close to t(1). In float32 many processors jump from m = 1 (a
matrix-vector product) to m = 2 (a matrix product). Each way of multiplying goes through a stack of layers with weights
of its own, in turn with the others, so that none finds its weights in a cache; `error` is relative to the first way.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from decoder.files import write_json
from decoder.measure.environment import environment
from decoder.report.tables import markdown_table

Way = Callable[[Tensor], Tensor]  # [m, in] -> [m, out]
WIDTHS = (1, 2, 3, 4, 5, 6, 8)


def plain(weight: Tensor) -> Way:
    return lambda x: torch.nn.functional.linear(x, weight)


def transposed(weight: Tensor) -> Way:
    """Weights stored [in, out], as GPT-2's checkpoints do."""
    kept = weight.t().contiguous()
    return lambda x: torch.mm(x, kept)


def padded(weight: Tensor) -> Way:
    """A single token padded to two rows."""

    def way(x: Tensor) -> Tensor:
        if x.shape[0] > 1:
            return torch.nn.functional.linear(x, weight)
        return torch.nn.functional.linear(torch.cat([x, x]), weight)[:1]

    return way


def row_by_row(weight: Tensor) -> Way:
    """m matrix-vector products."""
    return lambda x: torch.cat([torch.nn.functional.linear(x[i : i + 1], weight) for i in range(x.shape[0])])


def weights_first(weight: Tensor) -> Way:
    """(W x^T)^T: the weights are the left factor, the tokens the few columns."""
    return lambda x: torch.mm(weight, x.t()).t()


def onednn_packed(weight: Tensor) -> Way:
    """oneDNN with weights in its own blocked layout: `packed=True`."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 4)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def mkl_packed(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """MKL with weights packed for each m."""
    packed = {m: torch.ops.mkl._mkl_reorder_linear_weight(weight, m) for m in WIDTHS}
    return lambda x: torch.ops.mkl._mkl_linear(x, packed[x.shape[0]], weight, None, x.shape[0])


def bfloat16(weight: Tensor) -> Way:
    """Half the bytes of float32, for comparison; the first way where all is bfloat16."""
    short = weight.bfloat16()
    return lambda x: torch.nn.functional.linear(x.bfloat16(), short).float()


def medium(weight: Tensor) -> Way:
    """float32 in name: oneDNN may compute in bfloat16 (torch.set_float32_matmul_precision)."""

    def way(x: Tensor) -> Tensor:
        torch.set_float32_matmul_precision("medium")
        try:
            return torch.nn.functional.linear(x, weight)
        finally:
            torch.set_float32_matmul_precision("highest")

    return way


WAYS: dict[str, Callable[[Tensor], Way]] = {
    "linear": plain,
    "transposed weights": transposed,
    "one padded to two": padded,
    "row by row": row_by_row,
    "weights first": weights_first,
    "oneDNN packed": onednn_packed,
    "MKL packed": mkl_packed,
    "precision medium": medium,
    "bfloat16": bfloat16,
}


def matrices(hidden: int, layers: int, dtype: torch.dtype) -> list[Tensor]:
    """A GPT-2 layer's four matrices, for each layer."""
    shapes = [(3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)]
    return [(torch.randn(shape) / hidden**0.5).to(dtype) for _ in range(layers) for shape in shapes]


def prepared(make: Callable[[Tensor], Way], weights: Sequence[Tensor]) -> list[Way] | None:
    """Each matrix in this way's form; None where it cannot run here."""
    try:
        ways = [make(weight) for weight in weights]
        for m in WIDTHS:
            for way, weight in zip(ways, weights, strict=True):
                way(torch.ones(m, weight.shape[1], dtype=weight.dtype))
        return ways
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        print(f"{make.__name__} not here: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def timed(able: dict[str, list[Way]], weights: Sequence[Tensor], repeats: int) -> dict[str, dict[int, float]]:
    """Median milliseconds by way and m, the ways taking turns."""
    seconds: dict[str, dict[int, list[float]]] = {name: {m: [] for m in WIDTHS} for name in able}
    for _ in range(repeats):
        for m in WIDTHS:
            sizes = {weight.shape[1] for weight in weights}
            given = {size: torch.randn(m, size).to(weights[0].dtype) for size in sizes}
            for name, ways in able.items():
                began = time.perf_counter()
                for way, weight in zip(ways, weights, strict=True):
                    way(given[weight.shape[1]])
                seconds[name][m].append(time.perf_counter() - began)
    return {name: {m: 1e3 * median(each) for m, each in table.items()} for name, table in seconds.items()}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--hidden", type=int, default=1280, help="width of the model (default: GPT-2 large)")
    made.add_argument("--layers", type=int, default=3, help="of four matrices, each with weights of its own")
    made.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    made.add_argument("--repeats", type=int, default=7)
    made.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    return made


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    with torch.inference_mode():
        dtype = getattr(torch, args.dtype)
        weights = matrices(args.hidden, args.layers, dtype)
        able = {name: ways for name, make in WAYS.items() if (ways := prepared(make, weights)) is not None}
        tables = timed(able, weights, args.repeats)
        probe = torch.randn(5, args.hidden).to(dtype)
        outputs = {name: ways[0](probe).float() for name, ways in able.items()}
    exact = outputs["linear"]
    rows: list[list[object]] = []
    for name in WAYS:
        if name not in able:
            rows.append([name, *[None] * (len(WIDTHS) + 2)])
            continue
        table, error = tables[name], float((outputs[name] - exact).norm() / exact.norm())
        rows.append([name, *[table[m] for m in WIDTHS], table[5] / table[1], error])
    headers = ["ms", *[f"m={m}" for m in WIDTHS], "t(5)/t(1)", "error"]
    place = environment()
    text = f"{markdown_table(headers, rows)}\n\n{args.layers} layers of width {args.hidden}, {args.dtype}. "
    text += f"{place['processor']}, {place['threads']} threads; torch {place['versions']['torch']}; {place['date']}\n\n"
    text += f"    {place['command']}\n"
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"environment": place, "rows": [dict(zip(headers, row, strict=True)) for row in rows]}
        write_json(args.out.with_suffix(".json"), record)
        args.out.with_suffix(".md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
