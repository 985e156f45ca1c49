# SPDX-License-Identifier: Apache-2.0
"""The Python package: training, files, generation, tensors in and out, errors. numpy and torch are used where they are."""
import array
import ctypes
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import deepspeed_native as ds
from deepspeed_native import tensors

SOURCE = pathlib.Path(os.environ["DS_SOURCE_DIR"])
FOLDER = SOURCE / "test/golden/parity/llama3"
CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
          "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
IDS = [[(i * 7 + r) % 100 for i in range(16)] for r in range(2)]


def engine(**more):
    config = {**CONFIG, **more.pop("config", {})}
    return ds.initialize(model=more.pop("model", FOLDER), config=config, seq_length=more.pop("seq_length", 16), trainer={"learning_rate": 1e-2}, **more)


def batches(n):
    return ({"input_ids": IDS, "labels": IDS} for _ in range(n))


class Training(unittest.TestCase):
    def test_by_hand_is_train_batch(self):
        by_hand, at_once = engine(), engine()
        for _ in range(3):
            losses = []
            for _ in range(2):
                losses.append(by_hand(input_ids=IDS, labels=IDS))
                by_hand.backward(losses[-1])
                by_hand.step()
            self.assertEqual(at_once.train_batch(batches(2)), sum(losses) / 2)
        self.assertEqual((by_hand.global_steps, at_once.global_steps), (3, 3))
        self.assertEqual(by_hand.get("lm_head.weight").tolist(), at_once.get("lm_head.weight").tolist())
        self.assertLess(losses[-1], 4.5)

    def test_labels_are_shifted_targets(self):
        e = engine()
        targets = [row[1:] + [-100] for row in IDS]
        self.assertEqual(e.eval_batch(input_ids=IDS, labels=IDS), e.eval_batch(input_ids=IDS, targets=targets))

    def test_a_checkpoint_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            e = engine()
            e.train_batch(batches(2))
            e.save_checkpoint(folder, client_state={"row": 7})
            want = e.train_batch(batches(2))
            again = engine()
            self.assertEqual(again.load_checkpoint(folder), {"row": 7})
            self.assertEqual(again.train_batch(batches(2)), want)

    def test_values_and_notices(self):
        e = engine()
        self.assertEqual((e.config["train_batch_size"], e.config["optimizer.params.lr"]), (4, 1e-2))
        self.assertEqual((e.dp_rank, e.dp_world_size), (0, 1))
        self.assertEqual((e.rank, e.world_size, e.gradient_accumulation_steps), (0, 1, 2))
        self.assertEqual(e.parameters()["model.embed_tokens.weight"], (131, 32))
        e.lr = 0.5
        self.assertEqual(e.lr, 0.5)
        self.assertIn("hidden_size: 32", str(e.model))

    def test_a_plan_before_a_run(self):
        report = ds.plan(FOLDER, {**CONFIG, "zero_optimization": {"stage": 3}}, 16, ranks=8, trainer={"learning_rate": 1e-2})
        self.assertEqual(report["run"]["ranks"], 8)
        self.assertIn("memory of a rank at its peak", report["text"])


class Generation(unittest.TestCase):
    def test_live_is_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            e = engine()
            first = e.generate([1, 2, 3], 12)
            e.train_batch(batches(2))
            e.save_16bit_model(folder)
            now = e.generate([1, 2, 3], 12)
            self.assertNotEqual(first, now)
            self.assertEqual(ds.Generator(folder).generate([1, 2, 3], 12), now)

    def test_texts(self):
        model = {"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
        with engine(model=model, tokenizer=ds.Tokenizer("bytes")) as e:
            text = e.generate("ab", 5, temperature=1.0, seed=1)
            self.assertIsInstance(text, str)
            self.assertEqual(text, e.generate("ab", 5, temperature=1.0, seed=1))
        tokenizer = ds.Tokenizer("bytes")
        self.assertEqual(tokenizer.decode(tokenizer.encode("hü")), "hü")
        chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], True, template="chatml")
        self.assertEqual(chat, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")

    def test_logits_are_a_view(self):
        g = ds.Generator(FOLDER)
        g.prompt([1, 2, 3])
        logits = g.logits().memoryview()
        self.assertEqual(logits.shape, (131,))
        best = max(range(131), key=lambda i: logits[i])
        self.assertEqual(next(g.tokens()), best)


class Data(unittest.TestCase):
    def test_a_loader_feeds_and_resumes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.jsonl"
            path.write_text("".join(json.dumps({"text": f"row {i} of text"}) + "\n" for i in range(40)))
            model = {"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
            data = ds.Dataset(path, ds.Tokenizer("bytes"), 16)
            self.assertEqual(data.info.n_documents, 40)
            loader = ds.Loader(data, batch=2, seed=3)
            e = engine(model=model)
            self.assertTrue(math.isfinite(e.train_batch(loader)))
            state = loader.state()
            want = next(loader)["input_ids"].tolist()
            again = ds.Loader(data, batch=2, seed=3)
            again.restore(state)
            self.assertEqual(next(again)["input_ids"].tolist(), want)


    def test_alpaca_rows_are_what_ds_train_makes_of_them(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.jsonl"
            path.write_text("".join(json.dumps({"instruction": f"do {i}", "output": "done"}) + "\n" for i in range(8)))
            tokenizer = ds.Tokenizer("bytes")

            def tokens(**more):
                return ds.Dataset(path, tokenizer, 256, **more).info.n_tokens

            self.assertEqual(tokens(), tokens(alpaca="stanford"))  # no template
            self.assertEqual(tokens(chat_template="chatml"), tokens(chat_template="chatml", alpaca="template"))
            self.assertLess(tokens(chat_template="chatml"), tokens(chat_template="chatml", alpaca="stanford"))
            for wrong in ({"alpaca": "template"}, {"alpaca": "chat"}):
                with self.assertRaises(ds.ArgumentError):
                    tokens(**wrong)

    def test_ranks_have_samples_of_their_own(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.jsonl"
            path.write_text("".join(json.dumps({"text": f"row {i} of text"}) + "\n" for i in range(40)))
            context = ds.Context()
            data = ds.Dataset(path, ds.Tokenizer("bytes", context), 16, context=context)
            with mock.patch.dict(os.environ, {"WORLD_SIZE": "2"}):
                with self.assertRaisesRegex(ds.ArgumentError, "make the engine before the Loader"):
                    ds.Loader(data, batch=2)
                ds.Loader(data, batch=2, rank=0, n_ranks=1)
                with self.assertRaises(ds.ArgumentError):
                    ds.Loader(data, batch=2, rank=0)
                context.data_ranks = (1, 2)  # as an engine leaves it
                mine = next(ds.Loader(data, batch=2))["input_ids"].tolist()
            self.assertEqual(mine, next(ds.Loader(data, batch=2, rank=1, n_ranks=2))["input_ids"].tolist())
            self.assertNotEqual(mine, next(ds.Loader(data, batch=2, rank=0, n_ranks=2))["input_ids"].tolist())


class Numbers(unittest.TestCase):
    """A number that its field cannot hold is an error, where ctypes alone keeps the low bits."""

    def test_out_of_range(self):
        tokenizer = ds.Tokenizer("bytes")
        for wrong in (lambda: tokenizer.decode([2 ** 40]), lambda: tokenizer.decode([-1]), lambda: engine(seq_length=2 ** 70),
                      lambda: ds.Generator(FOLDER, max_length=2 ** 64), lambda: ds.Generator(FOLDER).prompt([2 ** 32]),
                      lambda: ds.plan(FOLDER, CONFIG, seq_length=8, ranks=2 ** 33)):
            with self.assertRaisesRegex((OverflowError, ctypes.ArgumentError), "expected a whole number from"):
                wrong()

    def test_lengths_and_sampling(self):
        for length in (0, -1):
            with self.assertRaisesRegex(ds.ArgumentError, "seq_length: expected at least 1"):
                engine(seq_length=length)
        g = ds.Generator(FOLDER)
        for wrong in ({"temperature": float("nan")}, {"temperature": 1.0, "top_p": -0.5}, {"temperature": 1.0, "top_k": -1},
                      {"temperature": 1.0, "top_p": float("nan")}):
            with self.assertRaisesRegex(ds.ArgumentError, "sampling: expected"):
                g.generate([1, 2], 2, **wrong)
        with self.assertRaisesRegex(ds.ArgumentError, "max_new_tokens is -1"):
            g.generate([1, 2], -1)


class Tensors(unittest.TestCase):
    def test_buffers_are_not_copied(self):
        e = engine()
        name = "model.norm.weight"
        values = array.array("f", range(32))
        e.set(name, values)
        self.assertEqual(e.get(name).tolist(), list(values))
        view, kept = tensors.borrow(values, "f32")
        self.assertEqual(view.data, values.buffer_info()[0])
        del kept
        got = e.get(name)
        got.memoryview()[0] = 9.0
        self.assertEqual(got.tolist()[0], 9.0)  # one memory

    def test_all_kinds_of_ids_are_one(self):
        e = engine()
        want = e.eval_batch(input_ids=IDS, labels=IDS)
        flat = [x for row in IDS for x in row]
        for letter in "iq":
            view = memoryview(array.array(letter, flat)).cast("B").cast(letter, [2, 16])
            self.assertEqual(e.eval_batch(input_ids=view, labels=view), want)
            frozen = view.toreadonly()
            self.assertEqual(e.eval_batch(input_ids=frozen, labels=frozen), want)

    def test_dlpack_goes_round(self):
        t = tensors.Tensor.empty((2, 3), "bf16")
        capsule_less = type("Other", (), {"__dlpack__": lambda self: t.__dlpack__()})()
        view, kept = tensors.borrow(capsule_less, "f32")
        self.assertEqual((view.data, view.meta.shape.n_dims), (t._address, 2))
        del kept, view
        self.assertEqual(tensors._living, {})

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "numpy is not installed")
    def test_numpy(self):
        import numpy as np
        e = engine()
        ids = np.array(IDS)
        self.assertEqual(e.eval_batch(input_ids=ids, labels=ids), e.eval_batch(input_ids=IDS, labels=IDS))
        with self.assertRaisesRegex(ds.ShapeError, "input_ids: a tensor must be contiguous"):
            e.eval_batch(input_ids=ids.T, labels=ids.T)
        got = e.get("lm_head.weight")
        shared = np.asarray(got)
        shared[0, 0] = 3.0
        self.assertEqual(got.memoryview()[0, 0], 3.0)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
    def test_torch(self):
        import torch
        e = engine(config={"bf16": {"enabled": True}})
        ids = torch.tensor(IDS)
        self.assertEqual(e.eval_batch(input_ids=ids, labels=ids), e.eval_batch(input_ids=IDS, labels=IDS))
        got = e.get("lm_head.weight")
        shared = torch.from_dlpack(got)
        shared[0, 0] = 3.0
        self.assertEqual(got.memoryview()[0, 0], 3.0)
        e.set("lm_head.weight", shared)
        self.assertEqual(e.get("lm_head.weight").tolist()[0][0], 3.0)


class Errors(unittest.TestCase):
    def test_have_the_librarys_words(self):
        e = engine()
        with self.assertRaisesRegex(ds.ShapeError, r"input_ids: expected i32\[2,16\], got i32\[1,1\]") as caught:
            e(input_ids=[[1]], labels=[[1]])
        self.assertEqual(caught.exception.status, "ERR_SHAPE")
        self.assertIn("src/train/", caught.exception.place)
        with self.assertRaisesRegex(ds.StateError, "ds_engine_step is not allowed"):
            e.step()
        with self.assertRaises(ds.NotFoundError):
            e.get("nothing")
        e.close()
        with self.assertRaisesRegex(ds.StateError, "Engine is closed"):
            e.step()

    def test_of_configurations(self):
        with self.assertRaisesRegex(ds.ConfigError, 'did you mean "zero_optimization"'):
            ds.Config({"zero_optimisation": {"stage": 3}, "train_batch_size": 1})
        with self.assertRaises(ds.NotFoundError):
            ds.Config("no_such_file.json")
        with self.assertRaisesRegex(ds.ArgumentError, "there is no trainer value 'lr'"):
            ds.Config(CONFIG).resolve(lr=1.0)

    def test_of_tensors(self):
        e = engine()
        for wrong, why in ((object(), "input_ids: a object is no tensor"), ([[1, 2], [3]], "different lengths"),
                           ([[2**40]], "no i32"), ([["a"]], "no i32")):
            with self.assertRaisesRegex(ds.DeepSpeedError, why):
                e.eval_batch(input_ids=wrong, labels=IDS)

    def test_of_batches_come_back(self):
        e = engine()
        with self.assertRaisesRegex(ds.ArgumentError, "ended before the step's 2"):
            e.train_batch(batches(1))

        def failing():
            yield {"input_ids": IDS, "labels": IDS}
            raise KeyError("mine")

        again = engine()
        with self.assertRaisesRegex(KeyError, "mine"):
            again.train_batch(failing())

    def test_of_a_missing_library(self):
        code = "import deepspeed_native"
        for path, why in (("/no/such.so", "DEEPSPEED_NATIVE_LIBRARY"), ("libm.so.6", "ds_version")):
            run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "DEEPSPEED_NATIVE_LIBRARY": path},
                                 capture_output=True, text=True)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(why, run.stderr)


if __name__ == "__main__":
    unittest.main()
