import contextlib
import time


class Progress:
    def __init__(self, is_quiet=False):
        self.q = is_quiet

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def said(self, t):
        self.q or print(t, flush=True)

    def logged(self, row):
        if self.q:
            return
        if "eval" in row:
            print(f"step {row['step']} eval loss {row['eval']['loss']:.3f} {row['eval']}", flush=True)
        else:
            print(f"step {row['step']} loss {row['loss']:.3f} {row['tokens_per_s']:,.0f} tokens/s", flush=True)

    def progress(self, *a):
        pass

    @contextlib.contextmanager
    def stage(self, what):
        t = time.perf_counter()
        yield
        self.q or print(f"{what}… {time.perf_counter() - t:.1f} s", flush=True)

    def step(self, at, steps):
        pass
