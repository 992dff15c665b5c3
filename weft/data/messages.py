"""Messages of chats: what a record holds of them, and what is wrong with it.

Imports errors alone. A message has a `role` and a `content`, and what else a template may know of.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import closest
from .errors import DataError
from .records import check_text

ROLES = ("system", "developer", "user", "assistant", "tool")
_OTHER_NAMES = {"human": "user", "gpt": "assistant"}  # of ShareGPT, which says `from` and `value`

Message = Mapping[str, Any]


def conversation_in(record: Mapping[str, Any], field: str, fields: Sequence[str] | None, place: str) -> list[Message]:
    """The messages of a record, with an answer; two `fields` are a question and its."""
    if fields:
        ask, answer = (text_of(record, name, place) for name in fields)
        messages: list[Message] = [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    else:
        messages = messages_in(record, field, place)
    if not any(message["role"] == "assistant" and message["content"] for message in messages):
        fix = 'end it with `{"role": "assistant", "content": "..."}`, or take it out'
        raise DataError(f"{place} is a chat without an answer", fix=fix)
    return messages


def messages_in(record: Mapping[str, Any], field: str, place: str) -> list[Message]:
    """The messages in a field of a record."""
    listed = record.get(field)
    if isinstance(listed, Mapping):  # a table's columns of roles and of contents
        rows = zip(*(values if isinstance(values, list) else () for values in listed.values()), strict=False)
        listed = [dict(zip(listed, values, strict=True)) for values in rows]
    if not isinstance(listed, list) or not listed:
        what = f"no field `{field}`" if field not in record else f"no list of messages in its field `{field}`"
        fix = f'write `{{"{field}": [{{"role": "user", "content": "..."}}, ...]}}`, or say `field`'
        raise DataError(f"{place} has {what}", fix=f"{fix}; {closest(field, record)}" if record else fix)
    return [_message(message, f"message {i} of the chat in {place}") for i, message in enumerate(listed, 1)]


def _message(message: Any, what: str) -> Message:
    """A message with its role and content, also one of ShareGPT's."""
    if not isinstance(message, Mapping):
        raise DataError(f"{what} is {message!r:.60}", fix='write `{"role": "user", "content": "..."}`')
    if "role" not in message and {"from", "value"} <= message.keys():
        message = {"role": _OTHER_NAMES.get(str(message["from"]), message["from"]), "content": message["value"]}
    message = {key: value for key, value in message.items() if value is not None}  # in a table all rows have all
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise DataError(f"{what} has the role {role!r:.60}", fix=closest(str(role), ROLES))
    if isinstance(content, list):  # of parts
        texts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        whole = "".join(text for text in texts if isinstance(text, str))
        content = whole if len(texts) == len(content) else content
    if content is None and "tool_calls" in message:
        content = ""
    if not isinstance(content, str):
        raise DataError(f"{what} has the content {content!r:.60}", fix="give a text; images and sounds are not read")
    check_text(content, "its content", what)
    return {**message, "content": content}


def text_of(record: Mapping[str, Any], name: str, place: str) -> str:
    """The text in a field of a record that holds several."""
    if not isinstance(record.get(name), str):
        raise DataError(f"{place} has no text in a field `{name}`", fix=f"say `fields`; {closest(name, record)}")
    check_text(record[name], f"its field `{name}`", place)
    return record[name]
