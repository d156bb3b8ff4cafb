"""Cases that may kill the process they run in: they run in another one, which says of each how it went."""

import json
import os
import subprocess
import sys


def begin(case):
    """In the child: the case that is to blame if nothing more is heard."""
    print(json.dumps({"case": case, "begun": True}), flush=True)


def tell(case, **outcome):
    """In the child: what came of it."""
    print(json.dumps({"case": case, **outcome}), flush=True)


def outcomes_of(script, cases, *arguments, **environment):
    """All that the child told of each case; one that killed it has {"died": why}, and the others go on."""
    found = {case: [] for case in cases}
    left = list(cases)
    while left:
        command = [sys.executable, script, *arguments, json.dumps(left)]
        child = subprocess.run(
            list(map(str, command)), env=os.environ | environment, capture_output=True, text=True
        )
        told = [json.loads(line) for line in child.stdout.splitlines()]
        for line in told:
            if "begun" not in line:
                found[line["case"]].append({key: value for key, value in line.items() if key != "case"})
        if child.returncode == 0:
            break
        assert told, child.stderr[-3000:]
        case = told[-1]["case"]
        found[case].append({"died": f"code {child.returncode}: {child.stderr[-2000:]}"})
        left = left[left.index(case) + 1 :]
    return found
