# SPDX-License-Identifier: Apache-2.0
"""blocks_*.bin: 40 blocks of values (f32), and what gguf.quants of PyPI's gguf (0.19.0) makes of them.

Needs numpy and gguf. Run here.
"""
import numpy as np
from gguf import GGMLQuantizationType as T, quants

for name, kind in (("q8_0", T.Q8_0), ("q4_0", T.Q4_0), ("q4_1", T.Q4_1), ("q5_0", T.Q5_0), ("q5_1", T.Q5_1)):
    rng = np.random.default_rng(7)
    x = rng.standard_normal((40, 32)).astype(np.float32)
    x[1] = 0
    x[2] *= 1e-6  # scales below the normal halves
    x[3] *= 1e4
    x[4] = np.round(x[4] * 4) / 4  # ties
    x[5, 1:] = 0
    x[6] = np.abs(x[6])
    x[7] = -np.abs(x[7])
    blocks = quants.quantize(x, kind)
    with open(f"blocks_{name}.bin", "wb") as f:
        f.write(x.tobytes() + blocks.tobytes())
