"""Generated tasks: the same documents everywhere and however they are asked for, splits that share no problem."""

from __future__ import annotations

import pytest

from sinkscope.base.errors import InputError
from sinkscope.tasks import get
from sinkscope.tasks.generated import GeneratedTask, split_of
from sinkscope.tasks.task import digest, fingerprint

NEVER_CHANGE = {
    "word_problems/1": "f97678e6b111e604", "small_code/1": "3c742d2d7c497873", "battery/1": "8b5a4aa6c98ec014",
}  # fmt: skip
"""Version → the first 324 test documents, on every machine and Python. A change here changes scores: count VERSION up."""


@pytest.fixture(scope="module", params=NEVER_CHANGE)
def task(request: pytest.FixtureRequest) -> GeneratedTask:
    return get(request.param.partition("/")[0])  # type: ignore[return-value]


def test_documents_are_the_same_everywhere(task: GeneratedTask) -> None:
    assert digest([fingerprint(document) for document in task.documents(324)]) == NEVER_CHANGE[task.version]


def test_splits_share_no_problem(task: GeneratedTask) -> None:
    """Neither structure and numbers nor questions."""
    train, test = [task.document("train", number) for number in range(3000)], task.documents(600)
    mine, theirs = ({document.extra["skeleton"] for document in documents} for documents in (train, test))
    assert not mine & theirs
    assert [{split_of(skeleton) for skeleton in each} for each in (mine, theirs)] == [{"train"}, {"test"}]
    assert not {document.question for document in train} & {document.question for document in test}
    assert len({document.question for document in test}) == len(test)


def test_documents_do_not_depend_on_how_they_are_asked_for(task: GeneratedTask) -> None:
    documents = task.documents(50)
    assert documents[:20] == task.documents(20) == task.find([document.id for document in documents[:20]])
    assert get(task.name, family="causal").documents(5) == documents[:5]
    with pytest.raises(InputError, match="give a limit"):
        task.documents()
    with pytest.raises(InputError, match="did you mean train"):
        task.document("trian", 0)  # type: ignore[arg-type]
