# SPDX-License-Identifier: Apache-2.0
"""Lets PyTorch use AMX where a hypervisor hides CPUID leaf 0x1D, so that a peer runs at its best.

oneDNN inside PyTorch asks that leaf how large the tiles are. Some virtual machines offer AMX (leaf 7) but answer
zeros there: oneDNN then configures no tile, and dies of an illegal instruction. Every processor with AMX has the one
palette of the architecture (8 tiles of 16 rows of 64 bytes; Intel SDM volume 1, section 18.2), so the five functions
that answer these questions are overwritten to return it. Needs `nm` (binutils). Does nothing on other machines.
"""
import ctypes
import mmap
import os
import subprocess

ANSWERS = {"get_max_paletteEv": 1, "get_target_paletteEv": 1, "get_max_tilesEi": 8, "get_max_rowsEi": 16, "get_max_column_bytesEi": 64}


def leaf_is_hidden():
    """CPUID is an instruction: a page of machine code runs it and returns EAX of leaf 0x1D."""
    if " amx_tile " not in open("/proc/cpuinfo").read().replace("\n", " "):
        return False
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # push rbx; mov eax, 0x1d; xor ecx, ecx; cpuid; pop rbx; ret
    code.write(bytes.fromhex("53 b8 1d 00 00 00 31 c9 0f a2 5b c3"))
    return ctypes.CFUNCTYPE(ctypes.c_uint32)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() == 0


def enable():
    """Call after `import torch` and before its first product. Returns what was done, in words."""
    if not leaf_is_hidden():
        return "CPUID leaf 0x1D as it is"
    import torch
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    base = min(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if line.rstrip().endswith(library))
    found = {}
    for line in subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout.splitlines():
        name = line.split()[-1]
        for end in ANSWERS:
            if name.startswith("_ZN4dnnl4impl3cpu3x643amx") and name.endswith(end):
                found[end] = base + int(line.split()[0], 16)
    if len(found) != len(ANSWERS):
        raise RuntimeError("this PyTorch's oneDNN has no function " + ", ".join(set(ANSWERS) - set(found)))
    libc = ctypes.CDLL(None, use_errno=True)
    for end, answer in ANSWERS.items():
        page = found[end] & -mmap.PAGESIZE
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), 7) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        ctypes.memmove(found[end], b"\xb8" + answer.to_bytes(4, "little") + b"\xc3", 6)  # mov eax, answer; ret
    return "CPUID leaf 0x1D is hidden here: oneDNN was told the architecture's palette 1"
