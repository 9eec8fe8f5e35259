#!/usr/bin/env python3
"""Writes bench/plan/data/dispatch_optima.json: the least makespans of the 300 rounds that dispatch is judged by
(dispatch_study.h), by the integer program of LobRA's Eq. 3. Needs scipy 1.9 or newer (HiGHS) and build-planning, which
bench/planning.py makes.

    ninja -C build-planning dispatch_problems && bench/plan/solve_dispatch.py [--gap 1e-4] [--seconds 60]

Variables: q_ij, sequences of bucket j that one replica of configuration i takes; y_i, whether it takes any; τ.
    minimise τ   with   Σ_i p_i·q_ij ≥ B_j,   Σ_j c_ij·q_ij + fill_i·y_i ≤ τ,   q_ij ≤ ⌈B_j / p_i⌉·y_i
"""
import argparse
import json
import math
import pathlib
import subprocess

import numpy
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

ROOT = pathlib.Path(__file__).resolve().parents[2]


def solve(problem, gap, seconds):
    """The least makespan that was found and the bound under all of them."""
    deployed = [(each, count) for each, count in zip(problem["configurations"], problem["replicas"]) if count > 0]
    sequences = problem["sequences"]
    places = [(i, j) for i, (each, _) in enumerate(deployed) for j in range(min(len(each["seconds"]), len(sequences)))]
    index = {place: k for k, place in enumerate(places)}
    first_used, tau = len(places), len(places) + len(deployed)
    upper = [math.ceil(sequences[j] / deployed[i][1]) for i, j in places]
    rows, low, high = [], [], []
    for j, count in enumerate(sequences):
        rows.append({index[i, j]: deployed[i][1] for i in range(len(deployed)) if (i, j) in index})
        low.append(count)
        high.append(numpy.inf)
    for i, (each, _) in enumerate(deployed):
        row = {index[i, j]: each["seconds"][j] for j in range(len(sequences)) if (i, j) in index}
        row[first_used + i] = each["fill"]
        row[tau] = -1
        rows.append(row)
        low.append(-numpy.inf)
        high.append(0)
        if each["fill"] > 0:
            for j in range(len(sequences)):
                if (i, j) in index:
                    rows.append({index[i, j]: 1, first_used + i: -upper[index[i, j]]})
                    low.append(-numpy.inf)
                    high.append(0)
    matrix = lil_matrix((len(rows), tau + 1))
    for r, row in enumerate(rows):
        for column, value in row.items():
            matrix[r, column] = value
    objective = numpy.zeros(tau + 1)
    objective[tau] = 1
    whole = numpy.ones(tau + 1)
    whole[tau] = 0
    limits = Bounds(numpy.zeros(tau + 1), numpy.array(upper + [1] * len(deployed) + [numpy.inf], dtype=float))
    result = milp(objective, integrality=whole, bounds=limits, constraints=LinearConstraint(matrix.tocsr(), low, high),
                  options={"mip_rel_gap": gap, "time_limit": seconds})
    if result.x is None:
        raise SystemExit(f"no solution: {result.message}")
    return result.fun, result.mip_dual_bound


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gap", type=float, default=1e-4, help="relative, at which a round counts as solved")
    parser.add_argument("--seconds", type=float, default=60, help="for one round")
    arguments = parser.parse_args()
    problems = json.loads(subprocess.run([ROOT / "build-planning/dispatch_problems"], check=True, capture_output=True, text=True).stdout)
    solved = []
    for k, problem in enumerate(problems):
        solved.append(solve(problem, arguments.gap, arguments.seconds))
        print(f"{k}: {solved[-1][0]:.6f} s, at least {solved[-1][1]:.6f} s", flush=True)
    document = {
        "about": "Least makespans of the 300 rounds of bench/plan/dispatch_study.h, found by HiGHS (bench/plan/solve_dispatch.py), and "
                 f"bounds under all makespans; relative gap {arguments.gap:g} or {arguments.seconds:g} s a round.",
        "seconds": [round(found, 6) for found, _ in solved],
        "lower_bounds": [round(bound, 6) for _, bound in solved],
    }
    (ROOT / "bench/plan/data/dispatch_optima.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
