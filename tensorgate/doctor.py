"""``tensorgate doctor``: what this machine has for TensorRT, and what is missing, with the command that installs it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.description = "Shows GPUs, driver, TensorRT and what can be built here, and how to get what is missing. Starts none of it."
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    """Shows it. What is missing is no failure: the exit code is 0."""
    from core_grpc.backends.tensorrt.examination import examined  # noqa: PLC0415 (the other commands need none of it)

    findings = examined()
    if args.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1) + "\n")
        return 0
    for finding in findings:
        sys.stdout.write(f"{'+' if finding.is_there else '-'} {finding.name:<24}{finding.state}\n")
        if finding.remedy:
            sys.stdout.write(f"  {'':<24}→ {finding.remedy}\n")
    return 0
