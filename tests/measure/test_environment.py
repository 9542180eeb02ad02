"""The record of where something was measured: complete, and free of folders that mean nothing elsewhere."""

from __future__ import annotations

import json
import os
import sys

import torch
import transformers

from decoder.measure.environment import command_line, environment
from decoder.models.toy import toy_model


def test_a_command_can_be_typed_elsewhere() -> None:
    program = os.path.join(os.getcwd(), "scripts", "synthetic.py")
    argv = [program, "--target", "/some/where/model", "--out=/a/b/c.json", "a b"]
    assert command_line(argv) == "python scripts/synthetic.py --target model --out=c.json 'a b'"
    assert command_line(["/elsewhere/bin/tool.py", "--k", "4"]) == "python tool.py --k 4"


def test_the_record_names_what_matters() -> None:
    model = toy_model("llama").to(torch.bfloat16)
    record = environment(model, argv=["x.py"])
    json.dumps(record, allow_nan=False)
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["transformers"] == transformers.__version__
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record["threads"] == torch.get_num_threads() and record["cores"] == os.cpu_count()
    assert record["processor"]
    assert record["target"]["dtype"] == "bfloat16"
    assert record["target"]["bytes"] == 2 * record["target"]["parameters"] == 2 * model.num_parameters()
    assert "draft" not in record
