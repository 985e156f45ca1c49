/* SPDX-License-Identifier: Apache-2.0 */
/* The shipped profiles and links: data-sheet peaks, and shares of them that were measured
 * elsewhere. docs/internals/cost.md repeats the sources as a table.
 *
 * [A] NVIDIA A100 data sheet (2021): 312 TFLOP/s bf16 and f16, 19.5 f32; 40 GB at 1555 GB/s, 80 GB
 *     at 2039 GB/s; NVLink 3, 600 GB/s both ways.
 * [H] NVIDIA H100 data sheet (2023): SXM 989.4 bf16 and f16, 66.9 f32, 80 GB at 3.35 TB/s, NVLink 4
 *     900 GB/s both ways; PCIe 756 and 51, 80 GB at 2.0 TB/s, bridge 600 GB/s both ways.
 * [I] NVIDIA H200 data sheet (2024): as H100 SXM, 141 GB at 4.8 TB/s.
 * [B] NVIDIA HGX/DGX B200 data sheet (2025): 2250 bf16 and f16 dense, 75 f32, 180 GB at 8 TB/s,
 *     NVLink 5 1800 GB/s both ways.
 * [R] NVIDIA Ada GPU architecture paper (2022), GeForce RTX 4090: 165.2 bf16 and f16 with sums in
 *     f32, 82.6 f32, 24 GB at 1008 GB/s, PCIe 4; no NVLink, and the driver joins no two of them:
 *     what ranks send goes through memory of the host.
 * [M] S. Bekman, Machine Learning Engineering, "Maximum Achievable Matmul FLOPS": the best bf16
 *     product found: A100 86.9 %, H100 and H200 80.3 %, B200 77.6 % of the peak.
 * [F] T. Dao, FlashAttention-2 (arXiv:2307.08691): on A100, causal, head dim 128, 16k: forward 62
 * %, backward 55 %. J. Shah et al., FlashAttention-3 (arXiv:2407.08608): on H100 likewise forward
 *     616 TFLOP/s (62 %), backward some 45 %. At 1k keys about two thirds of that; head dim 64
 * about 85 % of head dim 128. [N] Bekman, "Networking benchmarks": all-reduce of 8 H200: 18 µs at
 * 32 KiB; bus rate 366 GB/s as a ring (81 % of 450), 482 GB/s summed by the switch (each byte at 61
 * %). 8 B200: 839 GB/s (53 %). 4 nodes of 8 B200 with 400 Gb/s a device: 97 µs at 32 KiB, 376 GB/s
 * (94 % of 8 · 50). Sizes at which a half is left, elementwise shares and step latency (a kernel's
 * launch and tail) are estimates of ours.
 */
#include "base/nearest.h"
#include "cost/device_rows.h"

#include <stdio.h>
#include <string.h>

#define GB  1e9
#define TF  1e12
#define MIB 1048576.0 /* memory as the driver reports it: 40960 MiB … 183359 MiB */

/* A product: share of the peak; sizes of half. */
#define PRODUCT(share, m, n, k)                                                                    \
    {                                                                                              \
        .compute = (share), .memory = 0.85, (m), (n), (k)                                          \
    }
#define MEMORY(share)                                                                              \
    {                                                                                              \
        .compute = 1.0, .memory = (share)                                                          \
    }

/* GEMM's share, attention's and its backward's. */
#define GPU_ROW(gemm, att, att_back)                                                               \
    {                                                                                              \
        [DS_CLASS_LINEAR] = PRODUCT(gemm, 64.0, 64.0, 96.0),                                       \
        [DS_CLASS_LINEAR_DW] = PRODUCT(gemm, 64.0, 64.0, 96.0),                                    \
        [DS_CLASS_LOSS] = PRODUCT(0.9 * (gemm), 64.0, 64.0, 96.0),                                 \
        [DS_CLASS_LOSS_BACKWARD] = PRODUCT(0.9 * (gemm), 64.0, 64.0, 96.0),                        \
        [DS_CLASS_ATTENTION] = PRODUCT(att, 128.0, 500.0, 27.0),                                   \
        [DS_CLASS_ATTENTION_BACKWARD] = PRODUCT(att_back, 128.0, 500.0, 27.0),                     \
        [DS_CLASS_NORM] = MEMORY(0.80), [DS_CLASS_NORM_BACKWARD] = MEMORY(0.60),                   \
        [DS_CLASS_ELEMENTWISE] = MEMORY(0.85), [DS_CLASS_EMBEDDING] = MEMORY(0.60),                \
        [DS_CLASS_EMBEDDING_BACKWARD] = MEMORY(0.30), [DS_CLASS_REDUCE] = MEMORY(0.85),            \
        [DS_CLASS_OPTIMIZER] = MEMORY(0.85), [DS_CLASS_COPY] = MEMORY(0.85),                       \
        [DS_CLASS_COMM] = MEMORY(1.0), [DS_CLASS_VIEW] = MEMORY(1.0),                              \
    }

#define GPU_RATES(gemm, att, att_back)                                                             \
    {                                                                                              \
        [DSI_PEAK_F32] = GPU_ROW(0.90, 0.45, 0.40),                                                \
        [DSI_PEAK_BF16] = GPU_ROW(gemm, att, att_back),                                            \
        [DSI_PEAK_F16] = GPU_ROW(gemm, att, att_back),                                             \
    }

#define NVLINK3                                                                                    \
    {                                                                                              \
        .name = "nvlink3", .latency = 3e-6, .bandwidth = 300.0 * GB, .all_reduce = 0.78,           \
        .reduce_scatter = 0.78, .all_gather = 0.78                                                 \
    }
#define NVLINK4                                                                                    \
    {                                                                                              \
        .name = "nvlink4", .latency = 3e-6, .bandwidth = 450.0 * GB, .all_reduce = 0.61,           \
        .reduce_scatter = 0.81, .all_gather = 0.81, .multicast = true                              \
    }
#define NVLINK4_BRIDGE                                                                             \
    {                                                                                              \
        .name = "nvlink4-bridge", .latency = 3e-6, .bandwidth = 300.0 * GB, .all_reduce = 0.78,    \
        .reduce_scatter = 0.78, .all_gather = 0.78                                                 \
    }
#define NVLINK5                                                                                    \
    {                                                                                              \
        .name = "nvlink5", .latency = 3e-6, .bandwidth = 900.0 * GB, .all_reduce = 0.53,           \
        .reduce_scatter = 0.80, .all_gather = 0.80, .multicast = true                              \
    }
/* A port a device: Gb/s over 8. */
#define NETWORK(text, hop, bits, share)                                                            \
    {                                                                                              \
        .name = text, .latency = (hop), .bandwidth = (bits) / 8.0 * GB, .all_reduce = (share),     \
        .reduce_scatter = (share), .all_gather = (share)                                           \
    }
#define IB_HDR   NETWORK("ib-hdr200", 18e-6, 200.0, 0.90)
#define IB_NDR   NETWORK("ib-ndr400", 18e-6, 400.0, 0.90)
#define ROCE_200 NETWORK("roce-200", 20e-6, 200.0, 0.85)
#define ETH_100  NETWORK("ethernet-100", 30e-6, 100.0, 0.80)
#define ETH_25   NETWORK("ethernet-25", 40e-6, 25.0, 0.80)
#define ETH_10   NETWORK("ethernet-10", 50e-6, 10.0, 0.80)

#define PCIE(text, rate)                                                                           \
    {                                                                                              \
        .name = text, .latency = 5e-6, .bandwidth = (rate), .all_reduce = 0.70,                    \
        .reduce_scatter = 0.70, .all_gather = 0.70                                                 \
    }

/* Through memory of the host: it is written and read again, by kernels that copy pieces in turn. */
#define PCIE_HOST                                                                                  \
    {                                                                                              \
        .name = "pcie4-host", .latency = 10e-6, .bandwidth = 32.0 * GB, .all_reduce = 0.35,        \
        .reduce_scatter = 0.35, .all_gather = 0.35                                                 \
    }

static const dsi_link links[] = {
    NVLINK3,
    NVLINK4,
    NVLINK4_BRIDGE,
    NVLINK5,
    PCIE("pcie4", 32.0 * GB),
    PCIE("pcie5", 64.0 * GB),
    PCIE_HOST,
    IB_HDR,
    IB_NDR,
    ROCE_200,
    ETH_100,
    ETH_25,
    ETH_10,
};

/* Host and disk of a usual node of eight: two sockets, PCIe x16 to each device (88 % of the data
 * rate, [N]), four NVMe drives of generation 4 at 6.8 and 4.0 GB/s (Samsung PM9A3 data sheet). Host
 * Adam: bytes of memory over 28 a parameter. */
#define HOST(pcie, bandwidth)                                                                      \
    .host_memory_bytes = 2000.0 * GB, .host_bandwidth = (bandwidth), .host_link = 0.88 * (pcie),   \
    .host_adam = 0.8 * (bandwidth) / 28.0, .disk_read = 27.0 * GB, .disk_write = 16.0 * GB,        \
    .disk_latency = 1e-4

/* What all of them have alike: computation and kernels of collectives run concurrently. */
#define GPU_COMMON .latency = 5e-6, .overlap = 1.0, .slowdown = 0.06

#define SHARES "; shares of the peaks: docs/internals/cost.md"

static const dsi_device devices[] = {
    {.name = "a100-40g",
     .source = "NVIDIA A100 data sheet" SHARES,
     .peak = {19.5 * TF, 312.0 * TF, 312.0 * TF},
     .memory_bytes = 40960.0 * MIB,
     .memory_bandwidth = 1555.0 * GB,
     .rates = GPU_RATES(0.87, 0.77, 0.69),
     .ranks_per_node = 8,
     .node = NVLINK3,
     .net = ROCE_200,
     GPU_COMMON,
     HOST(32.0 * GB, 380.0 * GB)},
    {.name = "a100-80g",
     .source = "NVIDIA A100 data sheet" SHARES,
     .peak = {19.5 * TF, 312.0 * TF, 312.0 * TF},
     .memory_bytes = 81920.0 * MIB,
     .memory_bandwidth = 2039.0 * GB,
     .rates = GPU_RATES(0.87, 0.77, 0.69),
     .ranks_per_node = 8,
     .node = NVLINK3,
     .net = IB_HDR,
     GPU_COMMON,
     HOST(32.0 * GB, 380.0 * GB)},
    {.name = "h100-sxm",
     .source = "NVIDIA H100 data sheet" SHARES,
     .peak = {66.9 * TF, 989.4 * TF, 989.4 * TF},
     .memory_bytes = 81559.0 * MIB,
     .memory_bandwidth = 3350.0 * GB,
     .rates = GPU_RATES(0.80, 0.77, 0.56),
     .ranks_per_node = 8,
     .node = NVLINK4,
     .net = IB_NDR,
     GPU_COMMON,
     HOST(64.0 * GB, 600.0 * GB)},
    {.name = "h100-pcie",
     .source = "NVIDIA H100 data sheet, pairs joined by a bridge" SHARES,
     .peak = {51.0 * TF, 756.0 * TF, 756.0 * TF},
     .memory_bytes = 81559.0 * MIB,
     .memory_bandwidth = 2000.0 * GB,
     .rates = GPU_RATES(0.72, 0.70, 0.52), /* 350 W */
     .ranks_per_node = 2,
     .node = NVLINK4_BRIDGE,
     .net = ETH_100,
     GPU_COMMON,
     HOST(64.0 * GB, 600.0 * GB)},
    {.name = "h200",
     .source = "NVIDIA H200 data sheet" SHARES,
     .peak = {66.9 * TF, 989.4 * TF, 989.4 * TF},
     .memory_bytes = 143771.0 * MIB,
     .memory_bandwidth = 4800.0 * GB,
     .rates = GPU_RATES(0.80, 0.77, 0.56),
     .ranks_per_node = 8,
     .node = NVLINK4,
     .net = IB_NDR,
     GPU_COMMON,
     HOST(64.0 * GB, 600.0 * GB)},
    {.name = "b200",
     .source = "NVIDIA HGX B200 data sheet" SHARES,
     .peak = {75.0 * TF, 2250.0 * TF, 2250.0 * TF},
     .memory_bytes = 183359.0 * MIB,
     .memory_bandwidth = 8000.0 * GB,
     .rates = GPU_RATES(0.77, 0.75, 0.55),
     .ranks_per_node = 8,
     .node = NVLINK5,
     .net = IB_NDR,
     GPU_COMMON,
     HOST(64.0 * GB, 700.0 * GB)},
    {.name = "rtx-4090",
     .source = "NVIDIA Ada architecture paper" SHARES,
     .peak = {82.6 * TF, 165.2 * TF, 165.2 * TF},
     .memory_bytes = 24564.0 * MIB,
     .memory_bandwidth = 1008.0 * GB,
     .rates = GPU_RATES(0.87, 0.70, 0.62),
     .ranks_per_node = 8,
     .node = PCIE_HOST,
     .net = ETH_100,
     GPU_COMMON,
     HOST(32.0 * GB, 380.0 * GB)},
};

const dsi_device *dsi_device_at(uint32_t i)
{
    static const dsi_device *const measured[] = {&dsi_device_xeon, &dsi_device_zen3,
                                                 &dsi_device_zen5};
    const size_t n = sizeof devices / sizeof devices[0];
    if (i < n) {
        return &devices[i];
    }
    return i - n < sizeof measured / sizeof measured[0] ? measured[i - n] : NULL;
}

const dsi_link *dsi_link_at(uint32_t i)
{
    return i < sizeof links / sizeof links[0] ? &links[i] : NULL;
}

ds_status dsi_device_find(ds_ctx *ctx, const char *name, dsi_device *device_out)
{
    dsi_nearest nearest = {.word = name};
    char all[512] = "";
    size_t used = 0;
    for (uint32_t i = 0; dsi_device_at(i) != NULL; ++i) {
        const char *known = dsi_device_at(i)->name;
        if (strcmp(known, name) == 0) {
            *device_out = *dsi_device_at(i);
            return DS_OK;
        }
        dsi_nearest_offer(&nearest, known);
        const int n = snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "", known);
        used += n > 0 && used + (size_t)n < sizeof all ? (size_t)n : 0;
    }
    return ds_fail(ctx, DS_ERR_NOT_FOUND,
                   "device \"%s\" is neither a file nor a profile%s%s%s; there are: %s", name,
                   nearest.best != NULL ? ", did you mean \"" : "",
                   nearest.best != NULL ? nearest.best : "", nearest.best != NULL ? "\"" : "", all);
}
