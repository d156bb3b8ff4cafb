"""How the ranks of a job end after an error: one sentence, whoever finds it and however many do."""

import os
import signal

import pytest
from processes import as_torchrun_does, sentences

from megalith.core.errors import StorageError
from megalith.train.session import errors_before_sigterm, training_session


def fail(sentence_of_rank):
    """Every rank raises its own sentence, all at once."""
    with training_session() as session:
        session.ranks.from_each(lambda: None)
        raise StorageError(sentence_of_rank[session.ranks.rank])


@pytest.mark.parametrize("given", [("no room for a", "no room for a"), ("no room for a", "no room for b")])
def test_ranks_that_fail_at_once_say_one_sentence(given):
    done = as_torchrun_does(2, fail, given)
    assert done.codes == [2, 2]
    (said,) = sentences(done)
    assert said.removeprefix("megalith: ") in given


def fail_on_one_rank():
    with training_session() as session:
        session.ranks.from_each(lambda: None)
        if session.ranks.rank == 1:
            raise StorageError("no room on rank 1")
        session.ranks.from_each(lambda: None)


def test_a_rank_that_only_lost_its_peer_is_silent():
    done = as_torchrun_does(2, fail_on_one_rank)
    assert done.codes == [2, 2]
    assert sentences(done) == ["megalith: no room on rank 1"]


def fail_under_sigterm(with_error):
    """SIGTERM comes while an error is on its way up, as torchrun sends it after it has lost a rank."""
    with training_session() as session, errors_before_sigterm(session.ranks):
        session.ranks.from_each(lambda: None)
        try:
            if with_error:
                raise StorageError("no room")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_rank_that_is_terminated_while_it_fails_says_why():
    done = as_torchrun_does(2, fail_under_sigterm, True)
    assert done.codes == [2, 2]
    assert sentences(done) == ["megalith: no room"]


def test_a_rank_that_is_terminated_without_an_error_ends_by_the_signal():
    done = as_torchrun_does(2, fail_under_sigterm, False)
    assert done.codes == [-signal.SIGTERM] * 2
    assert sentences(done) == []
