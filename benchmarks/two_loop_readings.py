"""OML, CML and ANML on real MNIST in each reading, beside the paper's Table 1.

    python benchmarks/two_loop_readings.py --root DIR [--replicas 3] [--out runs/readings]
        [--only cml-text --only "anml-nested-inner_lr0.001"]

DIR holds MNIST/raw. Adagrad, lr 1e-2 (calibrated: the printed 1e-4 does not learn), N_meta = N_grad
= 150 as in appendix B.3. About a minute a replica and case on one CPU core; a second call extends.
"""

import argparse
from pathlib import Path

import dpmcl

# CME, NTE of MNIST in Table 1 of the paper
PAPER = {"oml": (0.023, 0.011), "cml": (0.659, 0.001), "anml": (0.873, 0.884)}
CASES = [
    *({"reading": reading} for reading in ("box", "box-literal", "text", "nested")),
    {"reading": "nested", "inner_lr": 1e-3},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", required=True, help="folder that holds MNIST/raw")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/readings"))
    parser.add_argument("--only", action="append", help="a case, as in cml-text")
    arguments = parser.parse_args()

    print("| method | setting | CME | NTE | NTE path | paper: CME, NTE |", flush=True)
    print("|---|---|--:|--:|--:|--:|", flush=True)
    cases = [(method, case) for case in CASES for method in PAPER]
    cases += [("anml", {"reading": "box", "gate": "outputs"})]
    for method, case in cases:
        if (method, case["reading"]) == ("anml", "box-literal"):  # its box has no theta~
            continue
        name = ", ".join(str(v) if k == "reading" else f"{k} {v}" for k, v in case.items())
        folder = f"{method}-{name.replace(', ', '-').replace(' ', '')}"
        if arguments.only and folder not in arguments.only:
            continue
        result = dpmcl.run(
            "mnist",
            methods=[method],
            replicas=arguments.replicas,
            settings={
                "stream.root": arguments.root,
                **{f"methods.{method}.{key}": value for key, value in case.items()},
            },
            out=arguments.out / folder,
        )
        row = result.rows(("nte_path",))[0]
        cells = [
            f"{row[f'{m}_mean']:.3f} ({row[f'{m}_se']:.3f})" for m in ("cme", "nte", "nte_path")
        ]
        paper = ", ".join(f"{value:.3f}" for value in PAPER[method])
        print(f"| {method} | {name} | {' | '.join(cells)} | {paper} |", flush=True)


if __name__ == "__main__":
    main()
