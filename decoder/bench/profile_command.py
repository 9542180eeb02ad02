"""L5: the command `scripts/profile.py`: where an iteration's time goes, and what forwards of each model cost.

profile.py                                                     the bundled pair profile.py --target gpt2-large
--draft distilgpt2 --k 4 --temperature 0.8 --prompt "Once upon a time" profile.py --geometry gpt2-large:distilgpt2
--acceptance 0.71 --dtype bfloat16 --out profile.json --picture profile.png profile.py --advise
should I speculate on these prompts, with what?
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging as library_logging

from decoder.bench.environment import environment
from decoder.bench.pictures import profile_picture
from decoder.bench.prompts import as_ids
from decoder.bench.setup import Setup, add_model_options, add_work_options, lengths, set_up
from decoder.drafters import DRAFTERS
from decoder.files import write_json
from decoder.measure.profile import Profile
from decoder.report.figures import save


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="profile.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_model_options(made)
    add_work_options(made)
    group = made.add_argument_group("profile")
    group.add_argument("--prompt", help="this text instead of a prompt of ours or of the file")
    names = sorted(set(DRAFTERS) - {"none"})
    group.add_argument("--drafter", action="append", choices=names, help="with --advise: repeatable")
    group.add_argument("--k", default="4", help="draft length, or auto (default 4)")
    group.add_argument("--repeats", type=int, default=9, help="timings of each forward (default 9)")
    group.add_argument("--advise", action="store_true", help="measure and say whether to speculate, over all prompts")
    group.add_argument("--out", type=Path, help="write the account as JSON")
    group.add_argument("--picture", type=Path, help="draw it (png, svg, pdf); needs the plots extra")
    return made


def _options(args: argparse.Namespace) -> dict[str, Any]:
    names = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
    return {name: getattr(args, name) for name in names}


def _advise(args: argparse.Namespace, setup: Setup) -> tuple[str, dict[str, Any]]:
    if args.picture is not None:
        raise ValueError("--picture draws a profile; leave it out with --advise.")
    advice = setup.spec.advise(
        [list(prompt) for prompt in setup.prompts],
        drafters=args.drafter,
        repeats=min(args.repeats, 3),
        **_options(args),
    )
    return str(advice), {"advice": advice.to_dict()}


def _profile(args: argparse.Namespace, setup: Setup) -> Profile:
    if args.drafter is not None and len(args.drafter) > 1:
        raise ValueError(f"--drafter={args.drafter}: a profile is of one drafter; give one, or --advise.")
    prompt = as_ids(setup.spec, [args.prompt])[0] if args.prompt is not None else setup.prompts[0]
    drafter = args.drafter[0] if args.drafter else None
    return setup.spec.profile(
        prompt, k=lengths([args.k])[0], repeats=args.repeats, drafter=drafter, eos_token_id=None, **_options(args)
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    library_logging.set_verbosity_error()
    try:
        setup = set_up(args)
        if args.advise:
            text, record = _advise(args, setup)
        else:
            profile = _profile(args, setup)
            text, record = str(profile), {"profile": profile.to_dict()}
            if args.picture is not None:
                save(profile_picture(profile, setup.title), args.picture)
        print("\n".join([setup.title, *setup.notes, text]))
        if args.out is not None:
            record |= {"title": setup.title, "notes": list(setup.notes)}
            record["environment"] = environment(setup.spec.target, setup.spec.draft)
            write_json(args.out, record)
    except (ValueError, TypeError, ImportError, OSError) as error:
        print(f"profile.py: {error}", file=sys.stderr)
        return 2
    return 0
