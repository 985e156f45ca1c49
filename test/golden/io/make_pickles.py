#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the pickles of test_pickle_mutations out of the folders that DeepSpeed and torch wrote (test/golden/deepspeed, test/golden/distcp):
pickles/NAME.pkl, and pickles/sizes.txt: lines of NAME, key and bytes of each storage that it names. Needs Python alone. Run in this folder.
"""
import io
import os
import tarfile
import zipfile

STEP = "global_step3"
SEEDS = {
    "zero1_model": ("deepspeed/zero1", f"zero1/{STEP}/mp_rank_00_model_states.pt"),
    "zero2_optim": ("deepspeed/zero2", f"zero2/{STEP}/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    "zero3_model": ("deepspeed/zero3", f"zero3/{STEP}/zero_pp_rank_0_mp_rank_00_model_states.pt"),
    "zero3_optim": ("deepspeed/zero3", f"zero3/{STEP}/zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    "bf16_optim": ("deepspeed/bf16", f"bf16/{STEP}/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    "tensor_model": ("deepspeed/tensor1", f"tensor1/{STEP}/mp_rank_01_model_states.pt"),
    "universal_optim": ("deepspeed/universal2", f"universal2/{STEP}_universal/zero/optimizer_state.pt"),
    "distcp": ("distcp/fsdp", ".metadata"),
}


def main():
    os.makedirs("pickles", exist_ok=True)
    sizes = []
    for name, (archive, path) in SEEDS.items():
        with tarfile.open(f"../{archive}.tar.gz") as tar:
            member = next(m for m in tar.getmembers() if m.name.endswith(path))
            data = tar.extractfile(member).read()
        if data[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(data)) as archive_of:
                for entry in archive_of.infolist():
                    if "/data/" in entry.filename:
                        sizes.append((name, entry.filename.rpartition("/")[2], entry.file_size))
                data = archive_of.read(next(n for n in archive_of.namelist() if n.endswith("/data.pkl")))
        with open(f"pickles/{name}.pkl", "wb") as out:
            out.write(data)
    with open("pickles/sizes.txt", "w", encoding="utf-8") as out:
        out.writelines(f"{name} {key} {n}\n" for name, key, n in sizes)


main()
