"""Speed of fable by draft length, on this machine: the table of the README.

    cargo build --release && python3 benches/draft_lengths.py [temperature] [prompts]

Each prompt of models/fable/prompts.txt gets 160 tokens with each length, twice; the faster run counts.
Speed-ups are of one run against plain decoding of the same prompt in the same run; the median is shown.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = ["none", "1", "2", "3", "4", "5", "6", "8", "auto"]


def stats(prompt, seed, length, temperature):
    command = [ROOT / "target/release/draftproof", "generate", prompt, "--json", "--ignore-eos"]
    command += ["--seed", str(seed), "--max-tokens", "160", "--temperature", temperature]
    command += ["--drafter", "none"] if length == "none" else ["--draft-len", length]
    runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in "ab"]
    return max((run["stats"] for run in runs), key=lambda stats: stats["tokens_per_second"])


def main():
    temperature = sys.argv[1] if len(sys.argv) > 1 else "1"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    prompts = (ROOT / "models/fable/prompts.txt").read_text().split("\n")[:count]
    rows = {
        length: [stats(prompt, i, length, temperature) for i, prompt in enumerate(prompts)]
        for length in LENGTHS
    }
    plain = [run["tokens_per_second"] for run in rows["none"]]
    print(f"temperature {temperature}, {count} prompts")
    print("| draft length | tokens/s | speed-up | predicted | tokens per round | alpha | c | v |")
    print("|---|---|---|---|---|---|---|---|")
    for length, runs in rows.items():
        rates = [run["tokens_per_second"] for run in runs]
        speedup = statistics.median(rate / base for rate, base in zip(rates, plain))
        figures = [f"{statistics.median(rates):.0f}", f"{speedup:.2f}"]
        for key, digits in [("predicted_speedup", 2), ("tokens_per_round", 2), ("alpha", 2),
                            ("c", 2), ("v_verify", 2)]:
            values = [run[key] for run in runs if run[key] is not None]
            figures.append(f"{statistics.median(values):.{digits}f}" if values else "-")
        print(f"| {length} | " + " | ".join(figures) + " |")


main()
