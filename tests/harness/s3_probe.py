# SPDX-License-Identifier: Apache-2.0
"""Runs programs that use S3 services, and tests/s3/s3_probe.cc, which drives the C++ client of S3 services."""
import json
import os

import pytest

from harness.filesystems import program
from harness.process import run


def clean_environment(more):
    """The variables of this process without those that choose a service or a proxy, and `more`."""
    return {**{name: value for name, value in os.environ.items() if not chooses_service(name)}, **more}


def chooses_service(name):
    return name.startswith("AWS_") or name.lower().endswith("_proxy")


class Refused(Exception):
    """The operation failed: `text` is the message, and `code` the errno."""

    def __init__(self, answer):
        super().__init__(answer["error"])
        self.answer, self.text, self.code = answer, answer["error"], answer["code"]


class Probe:
    def __init__(self, environment):
        self.environment = dict(environment)

    def __call__(self, command, *, time_limit=60, **options):
        """Runs the command with --NAME=VALUE for each option (True: a flag). Returns what it printed."""
        words = [program().parent / "s3_probe", command]
        for name, value in options.items():
            name = "--" + name.replace("_", "-")
            if value is True:
                words.append(name)
            elif isinstance(value, list):
                words += [name, *value]
            else:
                words.append(f"{name}={value}")
        finished = run(words, limit=time_limit, codes=(0, 1), env=clean_environment(self.environment))
        answer = json.loads(finished.out)
        if "error" in answer:
            assert "\n" not in answer["error"], answer
            raise Refused(answer)
        return answer

    def refused(self, *words, **options):
        """Runs a command that must fail. Returns the error."""
        with pytest.raises(Refused) as caught:
            self(*words, **options)
        return caught.value
