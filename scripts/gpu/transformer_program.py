"""A transformer made from a configuration: a training step, or an inference loop, through torch.compile.

Usage: transformer_program.py FAMILY TASK MODE DEVICE SIZE

A stock program of torch and transformers; it knows nothing of buildd. Checks its numbers against those without
torch.compile, and prints a line of JSON: seconds of the first call and of one more, a digest of the numbers, how often
Inductor's caches answered, how often something was timed, and the seconds of torch's own phases.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig, Qwen2Config, StaticCache

FAMILIES = ("llama", "gpt2", "qwen2")
TASKS = ("train", "infer")
_VOCABULARY = 4096
_TOKENS = 12
"""Tokens of an inference loop, each one call of the model."""
_PHASES_S = 0.02


def configuration(family: str, is_small: bool) -> PretrainedConfig:
    width, layers, heads = (64, 2, 4) if is_small else (1024, 4, 16)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if family == "gpt2":
        drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # so that two runs compare
        return GPT2Config(vocab_size=_VOCABULARY, n_embd=width, n_layer=layers, n_head=heads, **drops, **ends)
    made = {"llama": LlamaConfig, "qwen2": Qwen2Config}[family]
    return made(
        vocab_size=_VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads if family == "llama" else heads // 4,
        **ends,
    )


class Program:
    """A model with its inputs.

    Args:
        is_small: a size for tests on a CPU.
    """

    def __init__(self, family: str, mode: str, device: str, is_small: bool) -> None:
        torch.manual_seed(0)
        self.device = torch.device(device)
        self.mode = None if mode == "default" else mode
        self.configuration = configuration(family, is_small)
        # Half precision where GPUs have units for it; elsewhere its errors would hide others.
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.tolerance = 5e-2 if device == "cuda" else 1e-3
        made = AutoModelForCausalLM.from_config(self.configuration, attn_implementation="sdpa", dtype=self.dtype)
        # Without it transformers warns of GPT-2 while Dynamo traces, which breaks the graph.
        made.loss_type = "ForCausalLM"
        self.model = made.to(self.device)
        rows, length = (2, 16) if is_small else (4, 256)
        self.ids = torch.randint(_VOCABULARY, (rows, length)).to(self.device)

    def ready(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def close(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        scale = wanted.float().abs().max().item()
        torch.testing.assert_close(found.float(), wanted.float(), rtol=self.tolerance, atol=self.tolerance * scale)

    def train(self) -> tuple[float, float, bytes]:
        """Two training steps: seconds of each; the bits of the first one's loss."""
        model = self.model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step(called: torch.nn.Module) -> torch.Tensor:
            optimizer.zero_grad()
            loss = called(input_ids=self.ids, labels=self.ids, use_cache=False).loss
            loss.backward()
            return loss

        wanted = step(model)
        gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        with timed(self) as first:
            compiled = torch.compile(model, mode=self.mode)
            found = step(compiled)
        self.close(found, wanted)
        for each, gradient in zip((p.grad for p in model.parameters() if p.grad is not None), gradients, strict=True):
            self.close(each, gradient)
        bits = bits_of(found)
        optimizer.step()
        with timed(self) as second:
            step(compiled)
            optimizer.step()
        return first[0], second[0], bits

    @torch.no_grad()
    def infer(self) -> tuple[float, float, bytes]:
        """An inference loop, twice: seconds of each; the bits of the first one's tokens."""
        model = self.model.eval()
        cache = StaticCache(config=self.configuration, max_cache_len=self.ids.shape[1] + _TOKENS)

        def loop(called: torch.nn.Module, given: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
            """The tokens that follow, greedily, or those that are given; and what the model said of each."""
            cache.reset()
            ids, tokens, logits = self.ids, [], []
            for number in range(_TOKENS):
                torch.compiler.cudagraph_mark_step_begin()
                said = called(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1].clone()
                ids = said.argmax(-1, keepdim=True) if given is None else given[:, number : number + 1]
                tokens.append(ids)
                logits.append(said)
            return torch.cat(tokens, 1), torch.stack(logits, 1)

        loop(model)  # the cache and the device's libraries are there from then on
        self.ready()
        with timed(self) as first:
            compiled = torch.compile(model, mode=self.mode)
            tokens, said = loop(compiled)
        self.close(said, loop(model, tokens)[1])
        with timed(self) as second:
            loop(compiled)
        return first[0], second[0], bits_of(tokens)


@contextlib.contextmanager
def timed(program: Program) -> Iterator[list[float]]:
    program.ready()
    begun_s, took = time.perf_counter(), [0.0]
    yield took
    program.ready()
    took[0] = time.perf_counter() - begun_s


def bits_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist())


def count_timings() -> list[int]:
    """How many kernels are timed from now on, in a list of one. Inductor's own counters will not do: a graph from its
    cache adds what its compile had counted."""
    from torch._inductor.runtime import benchmarking

    kind, calls = type(benchmarking.benchmarker), [0]
    theirs = kind.benchmark_gpu

    def benchmark_gpu(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return theirs(*arguments, **named)

    kind.benchmark_gpu = benchmark_gpu
    return calls


def main(family: str, task: str, mode: str, device: str, size: str) -> None:
    timings = count_timings()
    program = Program(family, mode, device, size == "small")
    first_s, second_s, bits = program.train() if task == "train" else program.infer()
    from torch._dynamo.utils import compilation_time_metrics, counters

    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    phases = {name: round(sum(several), 3) for name, several in compilation_time_metrics.items()}
    told = {
        "first_s": first_s,
        "second_s": second_s,
        "digest": hashlib.sha256(bits).hexdigest()[:12],
        "graphs found": inductor["fxgraph_cache_hit"],
        "graphs missed": inductor["fxgraph_cache_miss"],
        "graphs bypassed": inductor["fxgraph_cache_bypass"],
        "autograd found": autograd["autograd_cache_hit"],
        "autograd missed": autograd["autograd_cache_miss"],
        "autograd bypassed": autograd["autograd_cache_bypass"],
        "timed": timings[0],
        "phases": {name: seconds for name, seconds in phases.items() if seconds >= _PHASES_S},
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
