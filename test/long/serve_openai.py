# SPDX-License-Identifier: Apache-2.0
"""openai's client over every endpoint and option of ds_serve; greedy texts of transformers. Usage: serve_openai.py PROGRAM SCRATCH [MODEL]"""
import atexit
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from typing import Literal

import openai
import torch
import transformers

PROGRAM, SCRATCH, MODEL = (sys.argv + [""])[1:4]


def make_model(folder):
    """A random Llama over bytes, with a tokenizer.json that transformers reads, too."""
    config = transformers.LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
                                      initializer_range=0.2, bos_token_id=None, eos_token_id=None)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template":
                   "{% for t in tools or [] %}{{ t | tojson }}<tool_call>\n{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
                   "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}<assistant>"}, f)


def start(model, *flags):
    process = subprocess.Popen([PROGRAM, "--model", model, "--served_model_name", "m", "--port", "0", "--dtype", "f32",
                                "--max_length", "1024", *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    atexit.register(process.kill)
    port = re.fullmatch(r"serving m on http://127.0.0.1:(\d+)\n", process.stdout.readline()).group(1)
    return process, openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=600)


def greedy_like_transformers(client, model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    reference = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    rng = random.Random(3)
    words = "the a fox sun river walks over under quick lazy blue stone and or with 7 12 , . ! ?".split()
    prompts = [" ".join(rng.choices(words, k=rng.randint(1, 60))) for _ in range(20)]
    got = [None] * len(prompts)

    def ask(i):
        got[i] = client.completions.create(model="m", prompt=prompts[i], max_tokens=64, temperature=0, logprobs=1,
                                           extra_body={"ignore_eos": True}).choices[0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(got), "some of the requests failed"
    for prompt, choice in zip(prompts, got):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            want = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0,
                                      return_dict_in_generate=True, output_logits=True)
        text = tokenizer.decode(want.sequences[0, ids.shape[1]:], skip_special_tokens=True)
        assert choice.text == text, (prompt, choice.text, text)
        for i, logits in enumerate(want.logits):
            top = torch.log_softmax(logits[0].double(), -1).max().item()
            assert abs(choice.logprobs.token_logprobs[i] - top) < 1e-3 * max(1, abs(top)), (i, choice.logprobs, top)
    print(f"{len(prompts)} greedy texts of 64 tokens as transformers'")


def beams_like_transformers(client, model):
    """Through the server, and by ds_generate."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    reference = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    program = os.path.join(os.path.dirname(PROGRAM), "ds_generate")
    rng = random.Random(4)
    for k in range(6):
        prompt = " ".join(rng.choices("the a fox sun river walks over under quick lazy blue".split(), k=rng.randint(2, 40)))
        n, penalty, end = rng.choice((2, 3, 5)), rng.choice((1.0, 0.0, 2.0)), rng.choice((False, True, "never"))
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        want = reference.generate(ids, attention_mask=torch.ones_like(ids), num_beams=n, num_return_sequences=n, max_new_tokens=24, do_sample=False,
                                  length_penalty=penalty, early_stopping=end, pad_token_id=0)
        texts = [tokenizer.decode(row[ids.shape[1]:], skip_special_tokens=True) for row in want]
        got = client.completions.create(model="m", prompt=prompt, max_tokens=24, n=n, temperature=0,
                                        extra_body=dict(use_beam_search=True, length_penalty=penalty, early_stopping=end))
        assert [c.text for c in got.choices] == texts, (prompt, texts, got)
        alone = subprocess.run([program, "--model", model, "--dtype", "f32", "--prompt", prompt, "--no_echo", "--max_new_tokens", "24", "--num_beams",
                                str(n), "--length_penalty", str(penalty), "--early_stopping", str(end).lower()], capture_output=True, check=True)
        assert alone.stdout.decode(errors="replace") == texts[0] + "\n", (alone.stdout, texts[0])
    print("beam searches as transformers'")


def options(client):
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "Hello"}]
    chat = client.chat.completions.create
    one = chat(model="m", messages=said, max_tokens=20, temperature=0)
    text = one.choices[0].message.content
    assert one.usage.completion_tokens == 20 and one.choices[0].finish_reason == "length" and one.model == "m", one
    with client.chat.completions.with_streaming_response.create(model="m", messages=said, max_tokens=3) as r:
        assert r.headers["x-request-id"].startswith("chatcmpl-"), r.headers
    frames = list(chat(model="m", messages=said, max_tokens=20, temperature=0, stream=True,
                       stream_options={"include_usage": True}))
    assert "".join(f.choices[0].delta.content or "" for f in frames if f.choices) == text, frames
    assert frames[-1].usage.total_tokens == one.usage.total_tokens and frames[0].choices[0].delta.role == "assistant"
    several = chat(model="m", messages=said, max_tokens=5, n=3, seed=5, logprobs=True, top_logprobs=4)
    assert [c.index for c in several.choices] == [0, 1, 2]
    for c in several.choices:
        for t in c.logprobs.content:
            assert len(t.top_logprobs) == 4 and t.logprob <= t.top_logprobs[0].logprob <= 0, t
    again = chat(model="m", messages=said, max_tokens=5, seed=5)
    assert again.choices[0].message.content == several.choices[0].message.content
    if len(text) > 6:
        stopped = chat(model="m", messages=said, max_tokens=20, temperature=0, stop=[text[3:6]]).choices[0]
        assert stopped.message.content == text[:text.index(text[3:6])] and stopped.finish_reason == "stop", stopped
    for field in (dict(top_k=1), dict(min_p=1.0)):
        assert chat(model="m", messages=said, max_tokens=20, extra_body=field).choices[0].message.content == text, field
    chat(model="m", messages=said, max_tokens=3, frequency_penalty=1.5, presence_penalty=-1, logit_bias={"5": -100}, top_p=0.5,
         user="u", metadata={"a": "b"})
    assert [m.id for m in client.models.list()] == ["m"] and client.models.retrieve("m").object == "model"
    for error, fields in ((openai.BadRequestError, dict(tools=[{"type": "function", "function": {"name": "f g"}}])),
                          (openai.BadRequestError, dict(tool_choice="required")),
                          (openai.BadRequestError, dict(response_format={"type": "json_schema", "json_schema": {"name": "a"}})),
                          (openai.BadRequestError, dict(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}})),
                          (openai.BadRequestError, dict(temperature=2.5)), (openai.BadRequestError, dict(max_tokens=99999)),
                          (openai.BadRequestError, dict(extra_body={"not_a_field": 1})), (openai.NotFoundError, dict(model="x"))):
        try:
            chat(**{**dict(model="m", messages=said), **fields})
        except error as e:
            assert e.body["message"] and e.body["type"], e
        else:
            raise AssertionError(fields)
    for fields in (dict(), dict(echo=True), dict(n=2), dict(logprobs=3), dict(suffix=None)):
        client.completions.create(model="m", prompt=["a b", "c"], max_tokens=4, **fields)
    print("options and errors of openai's client")


def structured(client):
    """Answers as pydantic models, by the client's own parse(); vLLM's structured_outputs."""
    import pydantic

    class Step(pydantic.BaseModel):
        kind: Literal["add", "drop"]
        amount: int = pydantic.Field(ge=1, le=99)
        note: str | None

    class Plan(pydantic.BaseModel):
        title: str = pydantic.Field(max_length=12)
        steps: list[Step] = pydantic.Field(max_length=3)

    said = [{"role": "user", "content": "Hello"}]
    whole = 0
    for seed in range(8):
        try:
            got = client.chat.completions.parse(model="m", messages=said, max_tokens=400, seed=seed, response_format=Plan,
                                                logit_bias={"34": 4, "125": 4, "93": 4})
        except openai.LengthFinishReasonError:
            continue
        whole += 1
        plan = got.choices[0].message.parsed
        assert isinstance(plan, Plan) and got.choices[0].finish_reason == "stop", got
    assert whole >= 6, whole
    with client.chat.completions.stream(model="m", messages=said, max_tokens=400, seed=1, response_format=Plan,
                                        logit_bias={"34": 4, "125": 4, "93": 4}) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Plan)
    for form, want in (({"choice": ["left", "right"]}, "left|right"), ({"regex": "[0-9]{3}-[a-f]+z"}, "[0-9]{3}-[a-f]+z"),
                       ({"grammar": 'root ::= ("ab")+ "."'}, r"(ab)+\.")):
        got = client.completions.create(model="m", prompt="a", max_tokens=60, seed=2, extra_body={"structured_outputs": form}).choices[0]
        assert got.finish_reason == "length" or re.fullmatch(want, got.text), (form, got)
    print(f"{whole} answers as pydantic models")


def tools(client):
    """Calls of tools through the client's own types, its stream helper and a round of an agent."""
    import pydantic

    class Weather(pydantic.BaseModel):
        city: Literal["Rome", "Oslo"]
        days: int = pydantic.Field(ge=1, le=7)

    some = [openai.pydantic_function_tool(Weather), {"type": "function", "function": {"name": "stop", "strict": True, "parameters": {
        "type": "object", "properties": {}, "additionalProperties": False, "required": []}}}]
    said = [{"role": "user", "content": "Hello"}]
    ask = dict(model="m", messages=said, tools=some, max_tokens=200, parallel_tool_calls=False)
    for seed in range(6):
        got = client.chat.completions.parse(**ask, seed=seed, tool_choice="required").choices[0]
        call = got.message.tool_calls[0]
        assert got.finish_reason == "tool_calls" and got.message.content is None and len(got.message.tool_calls) == 1, got
        assert call.function.name == "stop" or isinstance(call.function.parsed_arguments, Weather), call
        with client.chat.completions.stream(**ask, seed=seed, tool_choice="required") as stream:
            events = [e.type for e in stream]
            final = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert "tool_calls.function.arguments.done" in events and final.function.arguments == call.function.arguments, (events, final)
        back = said + [got.message.model_dump(exclude_none=True, exclude={"parsed": True, "tool_calls": {"__all__": {"function": {"parsed_arguments"}}}}),
                       {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        assert client.chat.completions.create(**{**ask, "messages": back}, tool_choice="none").choices[0].finish_reason
    named = client.chat.completions.create(**ask, tool_choice={"type": "function", "function": {"name": "stop"}}).choices[0]
    assert named.message.tool_calls[0].function.name == "stop" and json.loads(named.message.tool_calls[0].function.arguments) == {}, named
    auto = client.chat.completions.create(**{**ask, "max_tokens": 30}, logit_bias={"60": -100}).choices[0]
    assert auto.message.tool_calls is None and auto.finish_reason == "length", auto
    print("calls of tools")


def responses(client):
    """/v1/responses: whole, as events, and parsed."""
    import pydantic

    class Point(pydantic.BaseModel):
        x: int = pydantic.Field(ge=0, le=9)
        name: Literal["a", "b"]

    chat = client.chat.completions.create(model="m", messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "Hello"}],
                                          max_tokens=20, temperature=0)
    ask = dict(model="m", instructions="s", input="Hello", max_output_tokens=20, temperature=0)
    one = client.responses.create(**ask)
    assert one.output_text == chat.choices[0].message.content and one.status == "incomplete", one
    assert one.usage.output_tokens == 20 and one.incomplete_details.reason == "max_output_tokens", one
    with client.responses.stream(**ask) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        assert "".join(deltas) == one.output_text, deltas
    events = [e.type for e in client.responses.create(**ask, stream=True)]
    assert events[0] == "response.created" and events[-1] == "response.incomplete", events
    for seed in range(3):
        got = client.responses.parse(model="m", input=[{"role": "user", "content": f"{seed}"}], text_format=Point, max_output_tokens=200)
        assert got.status == "incomplete" or isinstance(got.output_parsed, Point), got
    for fields in (dict(previous_response_id="r"), dict(tools=[{"type": "web_search"}]), dict(extra_body={"not_a_field": 1})):
        try:
            client.responses.create(**{**ask, **fields})
        except openai.BadRequestError as e:
            assert e.body["message"], e
        else:
            raise AssertionError(fields)
    print("responses")


def main():
    model = MODEL or os.path.join(SCRATCH, "model")
    if not MODEL:
        make_model(model)
    process, client = start(model, "--max_sequences", "7", "--max_batch_tokens", "64")
    greedy_like_transformers(client, model)
    beams_like_transformers(client, model)
    options(client)
    structured(client)
    if not MODEL:
        tools(client)
    responses(client)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


main()
