"""Trains, exports and measures fable-loop; README.md beside this file says with which settings.

    python train.py train  --text train.txt.gz --tokenizer tokenizer.json --embedding fable/target/model.safetensors --out run.pt
    python train.py export --run run.pt --tokenizer tokenizer.json --held-out valid.txt.gz --out DIR --every 16

Needs torch, numpy, tokenizers and safetensors; a CPU is enough.
"""
import argparse, gzip, json, math, os, time
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

VOCAB, HIDDEN, LAYERS, HEADS, HEAD_DIM, MLP, LOOPS, CONTEXT = 4096, 192, 3, 4, 48, 512, 4, 384
EPS, THETA = 1e-6, 10000.0
LOOP_WEIGHTS = (0.1, 0.1, 0.2, 0.6)  # of the losses after loops 1 to 4


class Layer(torch.nn.Module):
    """Attention and SwiGLU, each between two norms; the second norm is on the branch, before the residual add."""

    def __init__(self):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(HIDDEN, HIDDEN) for _ in range(4))
        self.gate_proj, self.up_proj, self.down_proj = linear(HIDDEN, MLP), linear(HIDDEN, MLP), linear(MLP, HIDDEN)
        self.norms = torch.nn.ParameterList(torch.nn.Parameter(torch.full((HIDDEN,), w)) for w in (1.0, 0.4, 1.0, 0.4))

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        norm = lambda y, i: F.rms_norm(y, (HIDDEN,), self.norms[i].to(y.dtype), EPS)
        heads = lambda y: y.view(batch, length, HEADS, HEAD_DIM).transpose(1, 2)
        half = HEAD_DIM // 2
        turn = lambda y: y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin
        y = norm(x, 0)
        q, k, v = turn(heads(self.q_proj(y))), turn(heads(self.k_proj(y))), heads(self.v_proj(y))
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x = x + norm(self.o_proj(y.transpose(1, 2).reshape(batch, length, HIDDEN)), 1)
        y = norm(x, 2)
        return x + norm(self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y)), 3)


class Looped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN) * 0.02)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = torch.nn.Parameter(torch.ones(HIDDEN))
        turns = torch.outer(torch.arange(CONTEXT).float(), THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
        turns = torch.cat((turns, turns), -1)
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)

    def forward(self, ids):
        """The normed state after each loop, which is also what the next loop starts from."""
        x, states = F.embedding(ids, self.embed), []
        cos, sin = (t[: ids.shape[1]].to(torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype) for t in (self.cos, self.sin))
        if torch.is_autocast_enabled("cpu"):
            x = x.bfloat16()
        for _ in range(LOOPS):
            for layer in self.layers:
                x = layer(x, cos, sin)
            x = F.rms_norm(x, (HIDDEN,), self.norm.to(x.dtype), EPS)
            states.append(x)
        return states


def tokens(path, tokenizer):
    """The documents of a text, a token 0 before each."""
    cache = path + ".npy"
    if os.path.exists(cache):
        return np.load(cache)
    documents = gzip.open(path, "rt").read().split("\n<|endoftext|>\n")
    encoded = Tokenizer.from_file(tokenizer).encode_batch([d.strip("\n") for d in documents], add_special_tokens=False)
    ids = np.concatenate([np.array([0] + e.ids, dtype=np.uint16) for e in encoded])
    np.save(cache, ids)
    return ids


def reduced_embedding(path):
    """The first principal directions of another model's embedding with the same tokenizer: where this one starts."""
    from safetensors.torch import load_file

    u, s, _ = torch.linalg.svd(load_file(path)["model.embed_tokens.weight"].float(), full_matrices=False)
    return (u[:, :HIDDEN] * s[:HIDDEN]).contiguous()


def orthogonal(g):
    """Newton-Schulz iteration of Muon, on a stack of matrices."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


class Muon:
    def __init__(self, matrices, rate=0.015, momentum=0.95, decay=0.05):
        self.groups = {}
        for p in matrices:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self.averages = {s: torch.zeros(len(ps), *s) for s, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, scale):
        for shape, ps in self.groups.items():
            g = torch.stack([p.grad for p in ps])
            m = self.averages[shape].lerp_(g, 1 - self.momentum)
            step = orthogonal(g.lerp(m, self.momentum)) * max(1, shape[0] / shape[1]) ** 0.5
            rate = self.rate * scale
            for p, s in zip(ps, step):
                p.mul_(1 - rate * self.decay).add_(s, alpha=-rate)


def loss_of(model, ids, generator):
    """Cross-entropy after every loop; the early loops on a quarter of the positions, which costs less."""
    x, y = ids[:, :-1], ids[:, 1:].reshape(-1)
    losses = []
    for loop, state in enumerate(model(x)):
        state, wanted = state.reshape(-1, HIDDEN), y
        if loop + 1 < LOOPS:
            at = torch.randperm(len(y), generator=generator)[: len(y) // 4]
            state, wanted = state.index_select(0, at), y[at]
        losses.append(F.cross_entropy((state @ model.embed.to(state.dtype).T).float(), wanted))
    return losses


def train(a):
    torch.manual_seed(0)
    torch.set_num_threads(a.threads)
    generator = torch.Generator().manual_seed(1)
    data = torch.from_numpy(tokens(a.text, a.tokenizer).astype(np.int64))
    model = Looped()
    if a.embedding:
        model.embed.data = reduced_embedding(a.embedding)
    for layer in model.layers:
        layer.compile(dynamic=False)
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    muon, adam = Muon(matrices), torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    start, step, saved = time.time(), 0, time.time()
    while True:
        done = (time.time() - start) / (60 * a.minutes)
        if done >= 1:
            break
        # Warm-up by steps, then constant, then linear to zero by the clock, so that the machine's other load is no matter.
        scale = min(1, (step + 1) / 60) * min(1, (1 - done) / 0.6)
        at = torch.randint(len(data) - a.length - 1, (a.batch,), generator=generator)
        ids = torch.stack([data[i : i + a.length + 1] for i in at])
        with torch.autocast("cpu", torch.bfloat16):
            losses = loss_of(model, ids, generator)
        sum(w * l for w, l in zip(LOOP_WEIGHTS, losses)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for g in adam.param_groups:
            g["lr"] = 3e-3 * scale
        muon.step(scale)
        adam.step()
        model.zero_grad(set_to_none=True)
        step += 1
        if step % 20 == 0:
            print(f"{step} {done:.3f} {time.time() - start:.0f}s", " ".join(f"{l.item():.3f}" for l in losses), flush=True)
        if time.time() - saved > 120:
            saved = time.time()
            torch.save({"model": model.state_dict(), "step": step}, a.out)
    torch.save({"model": model.state_dict(), "step": step, "tokens": step * a.batch * a.length}, a.out)
    print(f"{step} steps, {step * a.batch * a.length} tokens")


def names(state):
    """The tensors of a run under the names of an Ouro checkpoint."""
    out = {"model.embed_tokens.weight": state["embed"], "model.norm.weight": state["norm"]}
    norms = ("input_layernorm", "input_layernorm_2", "post_attention_layernorm", "post_attention_layernorm_2")
    for l in range(LAYERS):
        for n in ("q_proj", "k_proj", "v_proj", "o_proj"):
            out[f"model.layers.{l}.self_attn.{n}.weight"] = state[f"layers.{l}.{n}.weight"]
        for n in ("gate_proj", "up_proj", "down_proj"):
            out[f"model.layers.{l}.mlp.{n}.weight"] = state[f"layers.{l}.{n}.weight"]
        for i, n in enumerate(norms):
            out[f"model.layers.{l}.{n}.weight"] = state[f"layers.{l}.norms.{i}"]
    # The gate is not trained: zeros give an exit probability of one half after every loop.
    out["model.early_exit_gate.weight"], out["model.early_exit_gate.bias"] = torch.zeros(1, HIDDEN), torch.zeros(1)
    return {n: t.bfloat16().contiguous() for n, t in out.items()}


@torch.no_grad()
def logits(model, ids):
    """Logits after every loop: [loops, positions, vocabulary]."""
    return torch.stack([s[0] @ model.embed.T for s in model(torch.tensor([ids]))])


@torch.no_grad()
def export(a):
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    run = torch.load(a.run)
    save_file(names(run["model"]), os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})
    model = Looped()
    model.load_state_dict({n: t.bfloat16().float() for n, t in run["model"].items()})
    tokenizer = Tokenizer.from_file(a.tokenizer)

    held = tokens(a.held_out, a.tokenizer).astype(np.int64)
    windows = [held[i : i + CONTEXT].tolist() for i in range(0, len(held) - CONTEXT + 1, CONTEXT)][:: a.every]
    loss, alpha, same, count = np.zeros(LOOPS), np.zeros(LOOPS - 1), np.zeros(LOOPS - 1), 0
    for ids in windows:
        law = torch.log_softmax(logits(model, ids)[:, :-1], -1)
        loss += -law[:, torch.arange(len(ids) - 1), torch.tensor(ids[1:])].sum(1).double().numpy()
        alpha += torch.minimum(law[:-1].exp(), law[-1:].exp()).sum(-1).sum(1).double().numpy()
        same += (law[:-1].argmax(-1) == law[-1:].argmax(-1)).sum(1).double().numpy()
        count += len(ids) - 1

    greedy = []
    for prompt in ("Once upon a time", "The old king said to his daughter,", "In the middle of the forest"):
        first = tokenizer.encode(prompt, add_special_tokens=False).ids
        ids, margins = list(first), []
        for _ in range(48):
            row = logits(model, ids)[-1, -1]
            top = row.topk(2)
            ids.append(int(top.indices[0]))
            margins.append(round(float(top.values[0] - top.values[1]), 6))
        greedy.append({"prompt": prompt, "prompt_ids": first, "ids": ids[len(first) :], "margins": margins})
    row_ids = held[:16].tolist()
    rounded = lambda xs: [round(float(x), 4) for x in xs]
    reference = {
        "made_with": f"train.py, torch {torch.__version__.split('+')[0]}, f32 arithmetic on the bf16 weights, 1 thread",
        "training": {"steps": run["step"], "tokens": run.get("tokens")},
        "held_out": {
            "windows": len(windows), "predictions": count,
            "loss_after_loop": rounded(loss / count),
            "overlap_with_last_loop": rounded(alpha / count),
            "argmax_agrees_with_last_loop": rounded(same / count),
        },
        "greedy": greedy,
        "logits": {"ids": row_ids, "first8_per_row_after_loop": [[[round(float(v), 5) for v in r] for r in l] for l in logits(model, row_ids)[:, :, :8]]},
    }
    json.dump(reference, open(os.path.join(a.out, "reference.json"), "w"))
    print(json.dumps(reference["held_out"]))


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("train")
    p.add_argument("--text", required=True), p.add_argument("--tokenizer", required=True), p.add_argument("--out", required=True)
    p.add_argument("--embedding", help="model.safetensors whose embedding is the start")
    p.add_argument("--minutes", type=float, default=85), p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=CONTEXT), p.add_argument("--threads", type=int, default=1)
    p.set_defaults(run_command=train)
    p = commands.add_parser("export")
    p.add_argument("--run", required=True), p.add_argument("--tokenizer", required=True), p.add_argument("--held-out", required=True)
    p.add_argument("--out", required=True), p.add_argument("--every", type=int, default=8)
    p.set_defaults(run_command=export)
    a = parser.parse_args()
    a.run_command(a)


if __name__ == "__main__":
    main()
