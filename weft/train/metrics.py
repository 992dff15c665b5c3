import json


class Metrics:
    def __init__(self, folder, *, from_step=0, is_writer=True, tensorboard=True, said=print):
        self.path = folder / "metrics.jsonl"
        self.w = is_writer

    def __enter__(self):
        self.f = self.path.open("a")
        return self

    def __exit__(self, *_):
        self.f.close()

    def __call__(self, row):
        if self.w:
            self.f.write(json.dumps(row) + "\n")
            self.f.flush()
