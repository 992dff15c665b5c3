"""Copies of this process that do work: what they find comes back, and what happens when they do not."""

import itertools
import os
import signal

import pytest

from weft.plan import workers
from weft.plan.workers import Workers


def squares(count, do=lambda job: job * job, jobs=range(7)):
    with Workers(do, count) as pool:
        return dict(pool.results(iter(jobs)))


SQUARES = {n: n * n for n in range(7)}


@pytest.mark.parametrize("count", [1, 2])
def test_each_job_is_done_once(count):
    assert squares(count) == SQUARES


def test_jobs_are_taken_only_when_a_core_is_free():
    taken = []

    def jobs():
        for job in itertools.count():
            taken.append(job)
            yield job

    with Workers(lambda job: job, 2) as pool:
        first = list(itertools.islice(pool.results(jobs()), 5))
    assert len(first) == 5 and len(taken) <= 8


def test_a_copy_that_dies_leaves_its_work_to_this_process():
    here = os.getpid()

    def do(job):
        if job == 3 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return job * job

    assert squares(2, do) == SQUARES


def test_a_copy_that_does_not_answer_leaves_its_work_to_this_process(monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 1.0)
    here = os.getpid()

    def do(job):
        if os.getpid() != here:
            signal.pause()
        return job * job

    assert squares(2, do) == SQUARES


def test_an_error_in_a_copy_is_raised_here():
    def do(job):
        raise KeyError(job)

    with pytest.raises(KeyError):
        squares(2, do)
