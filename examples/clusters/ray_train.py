"""Trains on the nodes of a Ray cluster: a process on each, started again when one dies, without nodes that are gone.

    python ray_train.py WORKERS run.toml --run FOLDER ...     # the words after WORKERS are those of `weft train`

`ray start --head` and `ray start --address=...` make the cluster, each with `--resources='{"weft": 1}'`; FOLDER is on a
file system that all nodes share.
"""

import os
import socket
import subprocess
import sys
import time

import ray

EXPLAINED = (1, 2)  # an error that weft explains, or a command that cannot be: the same would happen again
PATIENCE = 60  # seconds in which a node that is gone may come back


@ray.remote(num_cpus=0, resources={"weft": 1}, max_restarts=0)
class Worker:
    """One process of `weft train`, on a node of its own."""

    def address(self) -> str:
        """Where the others would reach this node, with a port that is free."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def train(self, words: list[str], coordinator: str, count: int, number: int, whole: int) -> int:
        place = {"WEFT_COORDINATOR": coordinator, "WEFT_PROCESSES": str(count), "WEFT_PROCESS": str(number)}
        environment = {**os.environ, **place, "WEFT_ELASTIC": str(whole)}
        # In a group that ends with this worker, also when the worker is killed.
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "weft", "train", *words], env=environment)
        return self.process.wait()


def free_workers(whole: int) -> int:
    """How many workers there is room for: all, or after a while those there are."""
    until = time.monotonic() + PATIENCE
    while True:
        room = int(ray.available_resources().get("weft", 0))
        if room >= whole or (room and time.monotonic() > until):
            return min(room, whole)
        time.sleep(1)


def run_once(words: list[str], whole: int) -> int:
    """Trains until all are done or one fails; 0, its status, or 70 for one that died."""
    count = free_workers(whole)
    print(f"ray_train: {count} of {whole} workers", flush=True)
    workers = [Worker.remote() for _ in range(count)]
    try:
        coordinator = ray.get(workers[0].address.remote())
        running = [worker.train.remote(words, coordinator, count, i, whole) for i, worker in enumerate(workers)]
        while running:
            done, running = ray.wait(running)
            if status := ray.get(done[0]):
                return status
        return 0
    except ray.exceptions.RayError as error:
        print(f"ray_train: {type(error).__name__}", flush=True)
        return 70
    finally:
        for worker in workers:
            ray.kill(worker)


def main(whole: int, words: list[str], restarts: int = 10) -> int:
    ray.init(address="auto", log_to_driver=True)
    for restart in range(restarts + 1):
        status = run_once(words, whole)
        if status == 0 or status in EXPLAINED:
            return status
        print(f"ray_train: a worker ended with status {status}; restart {restart + 1} of {restarts}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
