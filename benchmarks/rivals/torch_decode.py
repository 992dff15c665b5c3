"""Generation in PyTorch: a compiled step over a static KV cache, replayed as one CUDA graph a token."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from . import workloads
from .by_torch import DEVICE, IS_CUDA, Model, compiled
from .workloads import Workload


def generation(w: Workload, model: Model) -> Callable[[], Any]:
    """What continues prompts by the likeliest tokens, with weights cast once; gives the last of them."""
    model = model.to(torch.bfloat16).eval().requires_grad_(False)
    prompts = torch.as_tensor(workloads.batch(w)["tokens"], device=DEVICE).long()
    decoder = Decoder(w, model)
    return lambda: decoder.generate(prompts)[0, -1]


class Decoder:
    """A model with its KV cache, the last tokens and their place, all where a CUDA graph finds them."""

    def __init__(self, w: Workload, model: Model):
        self.w, self.model = w, model
        room = w.length + w.new_tokens
        shape = (w.layers, 2, w.batch, w.heads, room, w.d_kv)
        self.cache = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
        self.token = torch.zeros(w.batch, 1, dtype=torch.long, device=DEVICE)
        self.place = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.places = torch.arange(room, device=DEVICE)
        self.new = torch.zeros(w.batch, w.new_tokens, dtype=torch.long, device=DEVICE)
        self.prefill, self.step = compiled(self.advance), compiled(self.advance)
        self.graph: Any = None

    def advance(self, ids: Any, here: Any) -> Any:
        """The likeliest token after `ids`, which stand at the places `here`; keys and values go to the cache."""
        w, model = self.w, self.model
        x = model.embed(ids, here[None])
        is_seen = self.places <= here[:, None]
        for i, layer in enumerate(model.decoder.layers):
            h = layer.attention_norm(x)
            q, k, v = layer.attention.project(h, h)
            keys, values = self.cache[i, 0], self.cache[i, 1]
            keys[:, :, here] = k
            values[:, :, here] = v
            if ids.shape[1] > 1:
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=is_seen)
            x = x + layer.attention.out(mixed)
            x = x + layer.feed_forward(layer.feed_forward_norm(x))[0]
        x = model.decoder.norm(x[:, -1]) * w.d_model**-0.5
        return F.linear(x, model.embedding).argmax(-1, keepdim=True)

    @torch.no_grad()
    def generate(self, prompts: Any) -> Any:
        """The new tokens of each prompt."""
        w = self.w
        self.token.copy_(self.prefill(prompts, torch.arange(w.length, device=DEVICE)))
        self.place.fill_(w.length)
        self.new[:, :1] = self.token
        if self.graph is None:
            self.graph = self.capture()
        for _ in range(w.new_tokens - 1):
            self.graph()
        return self.new

    def turn(self) -> None:
        """One token more, from and to the places the graph knows."""
        self.token.copy_(self.step(self.token, self.place))
        self.place.add_(1)
        self.new.index_copy_(1, self.place - self.w.length, self.token)

    def capture(self) -> Callable[[], None]:
        """`turn` as a CUDA graph; the state is as before."""
        if not IS_CUDA:
            return self.turn
        state = [x.clone() for x in (self.token, self.place, self.new)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.turn()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.turn()
        for x, value in zip((self.token, self.place, self.new), state, strict=True):
            x.copy_(value)
        return graph.replay
