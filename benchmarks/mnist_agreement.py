"""Compare ER and DPMCL on real MNIST with results of independent plain PyTorch.

    python benchmarks/mnist_agreement.py --root DIR [--replicas 8] [--out runs/agreement]
        [--only er-0.01]

DIR holds MNIST/raw. Eight replicas take about 40 minutes on one CPU core. Plain PyTorch had Adagrad
(eps 1e-10, no initial accumulator, one state for the run), batch 32 drawn with replacement, one
batch in each update, a memory of every training row seen, the paper's LeNet with dropout, 60/20/20
splits, and 36 seeds of ER at 1e-2, eight of the others. Prints our mean, plain PyTorch's, and the
difference in units of its standard error; exits with status 1 if any exceeds three.
"""

import argparse
import math
import sys
from pathlib import Path

import dpmcl

# mean (standard error): CME, NTE after the last task, NTE over all tasks
PLAIN = {
    ("er", 1e-2): ((0.0427, 0.0007), (0.0833, 0.0029), (0.0327, 0.0008)),
    ("er", 1e-3): ((0.1856, 0.0088), (0.5132, 0.0689), (0.2084, 0.0151)),
    ("dpmcl", 1e-2): ((0.0494, 0.0036), (0.0130, 0.0011), (0.0079, 0.0004)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", required=True, help="folder that holds MNIST/raw")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/agreement"))
    parser.add_argument("--only", choices=[f"{method}-{lr:g}" for method, lr in PLAIN])
    arguments = parser.parse_args()

    worst = 0.0
    print("method  lr     figure     ours             plain PyTorch    difference / its se")
    for (method, lr), figures in PLAIN.items():
        if arguments.only not in (None, f"{method}-{lr:g}"):
            continue
        result = dpmcl.run(
            "mnist",
            methods=[method],
            replicas=arguments.replicas,
            seed=arguments.seed,
            settings={"training.lr": lr, "training.memory": 70000, "stream.root": arguments.root},
            out=arguments.out / f"{method}-{lr:g}",
        )
        row = result.rows(("nte_path",))[0]
        for name, (theirs, se) in zip(("cme", "nte", "nte_path"), figures, strict=True):
            mean, own_se = row[f"{name}_mean"], row[f"{name}_se"] or 0.0
            ratio = (mean - theirs) / math.hypot(se, own_se)
            worst = max(worst, abs(ratio))
            print(
                f"{method:<7} {lr:<6g} {name:<9} {mean:.4f} ({own_se:.4f})  "
                f"{theirs:.4f} ({se:.4f})  {ratio:+.2f}"
            )
    print(f"largest difference: {worst:.2f} standard errors, over {arguments.replicas} replicas")
    return int(worst > 3)


if __name__ == "__main__":
    sys.exit(main())
