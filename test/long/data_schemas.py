"""Random rows of every schema, their ids and loss mask as ours and as TRL's preparation: data_schemas.py PROGRAM ROWS SEED.

PROGRAM is test/programs/schema_rows.c. Rows and oracle are those of test/golden/data/make_schemas.py. Needs datasets, transformers
and TRL. Exit 1 on a difference.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden" / "data"))
import make_schemas  # noqa: E402


def ours(program, folder, cases):
    path = pathlib.Path(folder, "rows.jsonl")
    path.write_text("".join(json.dumps(c["line"]) + "\n" for c in cases))
    done = subprocess.run([program, folder, "", "", path], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def model_folder(folder, name, bos, eos):
    folder = pathlib.Path(folder)
    (folder / "tokenizer.json").write_text((make_schemas.HERE / f"tokenizer-{name}.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "eos_token": eos}))
    (folder / "chat_template.jinja").write_text(make_schemas.OWN_TEMPLATE)


def main():
    program, n, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    bad = seen = 0
    of = {}
    for name in ("qwen2", "llama2"):
        tok, bos, eos = make_schemas.tokenizer(name)
        cases = list(make_schemas.cases(random.Random(seed), tok, n))
        with tempfile.TemporaryDirectory() as folder:
            model_folder(folder, name, bos, eos)
            for case, have in zip(cases, ours(program, folder, cases), strict=True):
                seen += 1
                wrong = [k for k in ("schema", "ids", "mask", "n_chosen") if have.get(k) != case[k] and (k != "n_chosen" or case[k])]
                of.setdefault(case["of"], [0, 0])
                of[case["of"]][0] += 1
                if wrong:
                    bad += 1
                    of[case["of"]][1] += 1
                    if of[case["of"]][1] < 3:
                        print(f"{name}, {case['of']} (seed {seed}): {wrong} {have.get('error', '')}\n  {json.dumps(case['line'], ensure_ascii=False)}")
                        print("  want", [(tok.convert_ids_to_tokens(i), m) for i, m in zip(case["ids"], case["mask"])])
                        print("  have", [(tok.convert_ids_to_tokens(i), m) for i, m in zip(have.get("ids", []), have.get("mask", []))])
    print(f"rows of data: {seen} in {len(of)} schemas, {bad} differ")
    print(", ".join(f"{k} {v[0]}" + (f" ({v[1]} differ)" if v[1] else "") for k, v in of.items()))
    return 1 if bad or seen == 0 else 0


sys.exit(main())
