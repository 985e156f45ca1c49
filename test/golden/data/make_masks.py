# SPDX-License-Identifier: Apache-2.0
"""Writes masks/NAME.json: for each family of chat templates a file of training samples, and what transformers makes of them:
token ids, and which of them count in the loss. Also masks/tokenizer-*.json, where a family's tokenizer beside this script lacks
the family's special tokens.

Chats: apply_chat_template with return_assistant_tokens_mask, on the model's template with its assistant's turn and end token put
into {% generation %}. Pairs, as TRL's SFTTrainer prepares them: prompt, completion and end token encoded as one text; what follows
the tokens that it has in common with the prompt alone counts.
"""
import json
import pathlib

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from trl.data_utils import common_prefix_length

HERE = pathlib.Path(__file__).parent
OUT = HERE / "masks"
G, E = "{% generation %}", "{% endgeneration %}"


def im(role, content):
    return (f"'<|im_start|>' + {role} + '\\n' + {content} + '<|im_end|>' + '\\n'",
            f"'<|im_start|>' + {role} + '\\n' }}}}{G}{{{{ {content} + '<|im_end|>' }}}}{E}{{{{ '\\n'")


def branch(template, whole, marked, role):
    """Prints `marked` for the assistant, `whole` for others."""
    for form in ("{{%s}}", "{{ %s }}", "{{- %s }}"):
        old = form % whole
        if old in template:
            return template.replace(old, "{%% if %s == 'assistant' %%}{{- %s }}{%% else %%}{{- %s }}{%% endif %%}" % (role, marked, whole))
    raise ValueError(whole)


def mark_im(template):
    if "message['role'] + '\\n'" in template:
        return branch(template, *im("message['role']", "message['content']"), "message['role']")
    return branch(template, *im("message.role", "message.content"), "message.role")


def mark_qwen3(template):
    end = "        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}"
    assert template.count(end) == 1
    template = template.replace(end, "{{- '<|im_start|>assistant\\n' }}" + G + "{{- body + '<|im_end|>' }}" + E + "{{- '\\n' }}\n    {%- elif message.role == \"tool\" %}")
    head, tail = template.split("{%- elif message.role == \"assistant\" %}")
    for text in ("'<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n')",
                 "'<|im_start|>' + message.role + '\\n' + content"):
        body = text.replace("'<|im_start|>' + message.role + '\\n' + ", "").replace("'<|im_start|>' + message.role + '\\n<", "'<")
        tail = tail.replace("{{- " + text + " }}", "{%- set body = " + body + " %}")
    return head + "{%- elif message.role == \"assistant\" %}" + tail


def mark_llama3_one(template):
    """The first templates of Llama 3: a text set, then printed."""
    cut = "content|length - (message['content']|trim)|length - 10"
    marked = ("{% if message['role'] == 'assistant' %}{{ content[:" + cut + "] }}" + G + "{{ content[" + cut + ":] }}" + E +
              "{% else %}{{ content }}{% endif %}")
    assert template.count("{{ content }}") == 1
    return template.replace("{{ content }}", marked)


def mark_llama3(template):
    head = "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    whole = head + "+ message['content'] | trim + '<|eot_id|>'"
    return branch(template, whole, head + " }}" + G + "{{- message['content'] | trim + '<|eot_id|>' }}" + E + "{{ ''", "message['role']")


def around(text):
    def mark(template):
        assert template.count(text) == 1, text
        return template.replace(text, G + text + E)
    return mark


V7 = ('{{- " " + message["content"]|trim + eos_token}}', '{{- message["content"] + eos_token}}')
FAMILIES = {  # template: tokenizer, bos, eos, how its answers are marked
    "chatml": ("qwen2", None, "<|im_end|>", mark_im),
    "qwen2": ("qwen2", None, "<|im_end|>", mark_im),
    "qwen2.5": ("qwen2", None, "<|im_end|>", mark_im),
    "qwen3": ("qwen2", None, "<|im_end|>", mark_qwen3),
    "qwen3-2507": ("qwen2", None, "<|im_end|>", mark_qwen3),
    "llama2": ("llama2", "<s>", "</s>", around("{{ ' ' + content.strip() + ' ' + eos_token }}")),
    "llama3": ("llama3-chat", "<|begin_of_text|>", "<|eot_id|>", mark_llama3_one),
    "llama3.1": ("llama3-chat", "<|begin_of_text|>", "<|eot_id|>", mark_llama3),
    "mistral-v0.1": ("mistral", "<s>", "</s>", lambda t: t.replace("{{ message['content'] + eos_token + ' ' }}", G + "{{ message['content'] + eos_token }}" + E + "{{ ' ' }}")),
    "mistral-v1": ("mistral", "<s>", "</s>", around("{{- ' ' + message['content'] + eos_token}}")),
    "mistral-v3": ("mistral", "<s>", "</s>", around(V7[0])),
    "mistral-tekken": ("tekken", "<s>", "</s>", around(V7[1])),
}
S, U, A = "system", "user", "assistant"
CHATS = [
    [(U, "Hi"), (A, "Hello, how can I help?")],
    [(S, "Be brief."), (U, "Who are you?"), (A, "Nobody."), (U, "And I?"), (A, "The captain of this ship.\nAye.")],
    [(U, "a"), (A, "\nb"), (U, "c\n"), (A, "\n\n  d  \n"), (U, " e "), (A, " f")],
    [(U, "日本語 👍🏽"), (A, "c'est ça — d'accord 👩‍👩‍👧‍👦"), (U, "ok"), (A, "日本")],
    [(U, "1+1?"), (A, "<think>\nOne and one.\n</think>\n\nTwo."), (U, "2+2?"), (A, "<think>\n\nTwo and two\n\n</think>\n\n\nFour.")],
    [(U, "empty"), (A, ""), (U, "again"), (A, "x")],
    [(U, "0 12 345 6789"), (A, "12345678"), (U, "def f(a):\n\treturn a"), (A, "```c\nint f(int a)\n{\n\treturn a;\n}\n```")],
]
PAIRS = [("Q: why?\nA:", " because"), ("ab", "cd\n"), ("", "only an answer"), ("日本", "語👍🏽"), ("x ", " y")]


def tokenizer(name, special):
    path = HERE / f"tokenizer-{name}.json"
    if special:
        tok = Tokenizer.from_file(str(HERE / f"tokenizer-{special[0]}.json"))
        tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special[1:]])
        path = OUT / f"tokenizer-{name}.json"
        path.write_text(json.dumps(json.loads(tok.to_str()), ensure_ascii=False, indent=0) + "\n")
    return str(path)


SPECIAL = {"llama3-chat": ("llama3", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
           "tekken": ("gpt4o", "<unk>", "<s>", "</s>", "[INST]", "[/INST]")}


def chat_of(tok, template, marked, chat):
    messages = [{"role": r, "content": c} for r, c in chat]
    try:
        text = tok.apply_chat_template(messages, chat_template=template, tokenize=False)
    except Exception:
        return None  # the template refuses these roles
    assert tok.apply_chat_template(messages, chat_template=marked, tokenize=False) == text, (template, text)
    out = tok.apply_chat_template(messages, chat_template=marked, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return {"line": {"messages": messages}, "ids": list(out["input_ids"]), "mask": list(out["assistant_masks"])}


def main():
    OUT.mkdir(exist_ok=True)
    for name, (base, bos, eos, mark) in FAMILIES.items():
        path = tokenizer(base, SPECIAL.get(base))
        tok = PreTrainedTokenizerFast(tokenizer_file=path, bos_token=bos, eos_token=eos)
        template = (HERE / "templates" / f"{name}.jinja").read_text()
        marked = mark(template)
        assert G in marked
        chats = [chat_of(tok, template, marked, c) for c in CHATS]
        pairs = []
        for prompt, completion in PAIRS:
            alone = tok(prompt)["input_ids"]
            whole = tok(prompt + completion + eos)["input_ids"]
            n = common_prefix_length(alone, whole)
            pairs.append({"line": {"prompt": prompt, "completion": completion}, "ids": whole, "mask": [0] * n + [1] * (len(whole) - n)})
        out = {"template": f"{name}.jinja", "tokenizer": str(pathlib.Path(path).relative_to(HERE)), "bos": bos, "eos": eos,
               "chats": [c for c in chats if c], "pairs": pairs}
        (OUT / f"{name}.json").write_text(json.dumps(out, ensure_ascii=False) + "\n")
        print(name, len(out["chats"]), [sum(c["mask"]) for c in out["chats"]])


main()
