"""Samples of lm-evaluation-harness: the text of a question, and that of its answer.

A sample has the record of a benchmark as `doc`, its requests as `arguments`, each with a prompt and
either a continuation, one per choice, or the settings of a generation, and as `target` the answer
or the number of a choice. `samples_TASK_TIME.jsonl` are those of a task; a folder has other files.
"""

import re
from collections.abc import Iterator
from typing import Any

SAMPLES = re.compile(
    r"(?:^|/)samples_(?P<task>[^/]+?)(?:_\d{4}-\d\d-\d\dT[\d:.+-]+)?\.jsonl?[^/]*\Z"
)
_NEW_EXAMPLE = "\n\n"  # between few-shot examples, by default


def with_texts(sample: dict[str, Any]) -> dict[str, Any]:
    """Returns a sample with its `question`, without few-shot examples, and its answer as `target`.

    Without requests, the sample is returned as it is.
    """
    requests = sample.get("arguments")
    if isinstance(requests, dict):
        requests = list(requests.values())
    if not isinstance(requests, list):
        return sample
    requests = [list(each.values()) if isinstance(each, dict) else each for each in requests]
    if not requests or not all(isinstance(each, list) and each for each in requests):
        return sample
    doc, prompt = sample.get("doc"), requests[0][0]
    question = _question(prompt, doc) if isinstance(prompt, str) else None
    continuations = [each[1] for each in requests if len(each) > 1 and isinstance(each[1], str)]
    target = _answer(sample.get("target"), list(map(str.strip, continuations)), doc)
    return {**sample, "question": question, "target": target}


def _question(prompt: str, doc: Any) -> str:
    """Returns the prompt from the example on that has the longest text of `doc`."""
    texts = [text.strip() for text in _texts(doc)]
    longest = max((text for text in texts if text in prompt), key=len, default="")
    if not longest:
        return prompt
    before, _, _ = prompt.rpartition(longest)
    return prompt[len(before) - len(before.rpartition(_NEW_EXAMPLE)[2]) :]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _answer(target: Any, continuations: list[str], doc: Any) -> Any:
    """Returns the text of a target that is the number of a choice; None if there is no such one."""
    is_number = isinstance(target, int) and not isinstance(target, bool)
    is_number = is_number or (isinstance(target, str) and target.isdecimal())
    if not is_number or not continuations or str(target) in continuations:
        return target
    choices = doc.get("choices") if isinstance(doc, dict) else None
    if isinstance(choices, dict):
        choices = choices.get("text")
    if not isinstance(choices, list) or len(choices) != len(continuations):
        choices = continuations
    return choices[int(target)] if 0 <= int(target) < len(choices) else None
