# SPDX-License-Identifier: Apache-2.0
"""Writes chat.json: chat templates, conversations, and what transformers' apply_chat_template makes
of them. The templates beside it are those of the models (templates/NAME.jinja), and others."""
import json
import pathlib

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
TODAY = "@DATE@"

def m(*pairs):
    return [{"role": r, "content": c} for r, c in pairs]


U, A, S, T = "user", "assistant", "system", "tool"
CONVERSATIONS = [
    m((U, "Hello!")),
    m((S, "Be brief."), (U, "Hello!")),
    m((U, "Hi"), (A, "Hello, how can I help?")),
    m((S, "You are a pirate.\n"), (U, "  Who\tare you? "), (A, " Arr! \n"), (U, "\nAnd who am I?\n\n"), (A, "\u3000\x1cThe captain.\x85\u00a0")),
    m((U, ""), (A, "")),
    m((U, "1+1?"), (A, "<think>\nOne and one.\n</think>\n\nTwo."), (U, "2+2?"), (A, "<think>\n\nTwo and two\n\n</think>\n\n\nFour.")),
    m((U, "1+1?"), (A, "<think>a</think>b</think>\nc"), (A, "more"), (U, "x"), (A, "<think>only"), (A, "last")),
    m((U, "<tool_response>\nx\n</tool_response>"), (A, "<think>y</think>z")),
    m((A, "I begin."), (U, "Fine.")),
    m((U, "a"), (U, "b")),
    m((U, "a"), (S, "mid"), (A, "b")),
    m((S, "only system")),
    m((S, "s"), (S, "s2"), (U, "u"), (A, "a")),
    m((U, "weather?"), (A, "let me see"), (T, "sunny \"25\"\n\u00e9\x01"), (T, "windy"), (A, "It is sunny.")),
    m((U, "日本語 👍🏽 <|im_end|> [INST] </s>"), (A, "c'est ça — d'accord"), (U, "ok"), (A, "fin")),
    m((S, ""), (U, "u"), (A, "a"), (U, "u2")),
    m((U, "u"), ("critic", "c"), (A, "a")),
    m((U, "u"), (A, "\n\n<think>\n\n</think>\n\nanswer\n\n")),
]


def render(tok, template, conversation, prompt, **kwargs):
    # 3.2 asks for today's date, which is no constant
    template = template.replace('strftime_now("%d %b %Y")', '"' + TODAY + '"')
    try:
        return tok.apply_chat_template(conversation, chat_template=template, tokenize=False, add_generation_prompt=prompt, **kwargs)
    except Exception:
        return None  # the template refuses these roles


def main():
    tok = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<BOS>", eos_token="<EOS>")
    templates = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        text = path.read_text()
        name = path.name.removesuffix(".jinja")
        results = [[render(tok, text, c, p) for p in (False, True)] for c in CONVERSATIONS]
        no_thinking = [render(tok, text, c, True, enable_thinking=False) for c in CONVERSATIONS]
        templates.append({"file": name, "text": text, "results": results, "no_thinking": no_thinking})
    out = {"conversations": CONVERSATIONS, "templates": templates}
    (HERE / "chat.json").write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n")


main()
