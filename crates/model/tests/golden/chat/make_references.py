"""Renders the templates of this folder as transformers does; writes references.json.

Usage: python make_references.py FOLDER
"""
import datetime, json, pathlib, sys
from transformers.utils import chat_template_utils as u

class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 5, 14, 7, 9)
u.datetime = Fixed

here = pathlib.Path(sys.argv[1])
system = {"role": "system", "content": "You are terse."}
user = {"role": "user", "content": "  Héllo <b>\"you\"</b> & co!\n"}
assistant = {"role": "assistant", "content": "Hi."}
thinking = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHi there."}
again = {"role": "user", "content": "And now?"}
call = {"id": "abcdef123", "type": "function", "function": {"name": "sum", "arguments": {"z": [1, 2.5, None, True], "a": "é<&>'\""}}}
conversations = {
    "user": [user],
    "system": [system, user],
    "turns": [user, assistant, again],
    "system and turns": [system, user, assistant, again],
    "thinking": [user, thinking, again],
    "calls": [user, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "3.5", "tool_call_id": "abcdef123"}, again],
    "calls answered": [system, user, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "3.5", "tool_call_id": "abcdef123"}],
    "two users": [user, again],
    "assistant first": [assistant, user],
}
# As text, since a reader of JSON may not keep the order of keys.
texts = {name: json.dumps(messages, ensure_ascii=False) for name, messages in conversations.items()}
out = {"conversations": texts, "rendered": {}}
tokens = json.loads((here / "tokens.json").read_text())
for file in sorted(here.glob("*.jinja")):
    template = file.read_text()
    rows = out["rendered"][file.stem] = {}
    for name, messages in conversations.items():
        try:
            text = u._compile_jinja_template(template).render(messages=messages, tools=None, documents=None, add_generation_prompt=True, **tokens[file.stem])
            rows[name] = {"text": text}
        except Exception as e:
            rows[name] = {"raises": f"{type(e).__name__}: {e}"}
(here / "references.json").write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")
