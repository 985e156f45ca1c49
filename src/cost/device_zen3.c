/* SPDX-License-Identifier: Apache-2.0 */
/* A shipped profile that was measured: `deepspeed --num_gpus 2 ds_bench --profile` on two cores of
 * an AMD EPYC (Zen 3: AVX2, no AVX-512; family 25, model 1, virtual, 23 GiB; 22 November 2026), the
 * hop of a collective from docs/measurements/comm.md. An example of what to expect of such a
 * processor; measure your own. */
#include "cost/device_measured.h"
#include "cost/device_rows.h"

const dsi_device
    dsi_device_zen3 =
        {
            .name = "epyc-avx2-2",
            .source = "measured on two cores of an AMD EPYC (Zen 3), see docs/internals/cost.md",
            .peak = {1.39e+11, 1.26e+11, 1.34e+11},
            .latency = 7e-08,
            .memory_bytes = 2.53e+10,
            .memory_bandwidth = 3.29e+10,
            .shared = true,
            .cores = {.n = 2},
            .in_place = true,
            .ranks_per_node = 2,
            .node = {.name = "shm",
                     .latency = 3e-07,
                     .bandwidth = 5.74e+09,
                     .all_reduce = 1,
                     .reduce_scatter = 0.953,
                     .all_gather = 0.353},
            .net = {.name = "ethernet-10",
                    .latency = 50e-6,
                    .bandwidth = 1.25e9,
                    .all_reduce = 0.8,
                    .reduce_scatter = 0.8,
                    .all_gather = 0.8},
            .host_memory_bytes = 2.53e+10,
            .host_bandwidth = 3.29e+10,
            .host_link = 1.65e+10,
            .host_adam = 2.19e+09,
            .disk_read = 1.55e+09,
            .disk_write = 4.01e+09,
            .disk_both = 4.43e+09,
            .disk_latency = 0.000139,
            .rates =
                {
                    [DSI_PEAK_F32] =
                        {
                            [DS_CLASS_LINEAR] = PRODUCT(0.969, 22.4, 0, 39.7),
                            [DS_CLASS_LINEAR_DW] = PRODUCT(0.929, 0, 27.2, 16.2),
                            [DS_CLASS_LOSS] = PRODUCT(1.04, 18.4, 523, 53.8),
                            [DS_CLASS_LOSS_BACKWARD] = PRODUCT(1.18, 21, 529, 154),
                            [DS_CLASS_ATTENTION] = PRODUCT(0.796, 42.4, 195, 0),
                            [DS_CLASS_ATTENTION_BACKWARD] = PRODUCT(0.887, 0.771, 276, 6.73),
                            [DS_CLASS_NORM] = MEMORY(0.838),
                            [DS_CLASS_NORM_BACKWARD] = MEMORY(0.971),
                            [DS_CLASS_ELEMENTWISE] = MEMORY(0.889),
                            [DS_CLASS_EMBEDDING] = MEMORY(0.451),
                            [DS_CLASS_EMBEDDING_BACKWARD] = MEMORY(0.535),
                            [DS_CLASS_REDUCE] = MEMORY(0.741),
                            [DS_CLASS_OPTIMIZER] = MEMORY(1.86),
                            [DS_CLASS_COPY] = MEMORY(1.01),
                            [DS_CLASS_COMM] = MEMORY(1),
                            [DS_CLASS_VIEW] = MEMORY(1),
                        },
                    [DSI_PEAK_BF16] =
                        {
                            [DS_CLASS_LINEAR] = PRODUCT(0.865, 0, 0, 29.7),
                            [DS_CLASS_LINEAR_DW] = PRODUCT(0.943, 0.104, 54.4, 37.6),
                            [DS_CLASS_LOSS] = PRODUCT(0.967, 20.1, 0, 48.8),
                            [DS_CLASS_LOSS_BACKWARD] = PRODUCT(0.839, 18.6, 0, 0),
                            [DS_CLASS_ATTENTION] = PRODUCT(1.29, 93.5, 339, 30),
                            [DS_CLASS_ATTENTION_BACKWARD] = PRODUCT(0.817, 0, 276, 4.71),
                            [DS_CLASS_NORM] = MEMORY(0.458),
                            [DS_CLASS_NORM_BACKWARD] = MEMORY(0.526),
                            [DS_CLASS_ELEMENTWISE] = MEMORY(0.325),
                            [DS_CLASS_EMBEDDING] = MEMORY(0.256),
                            [DS_CLASS_EMBEDDING_BACKWARD] = MEMORY(0.388),
                            [DS_CLASS_REDUCE] = MEMORY(0.421),
                            [DS_CLASS_OPTIMIZER] = MEMORY(1.32),
                            [DS_CLASS_COPY] = MEMORY(0.749),
                            [DS_CLASS_COMM] = MEMORY(1),
                            [DS_CLASS_VIEW] = MEMORY(1),
                        },
                    [DSI_PEAK_F16] =
                        {
                            [DS_CLASS_LINEAR] = PRODUCT(0.991, 8.72, 13.7, 31),
                            [DS_CLASS_LINEAR_DW] = PRODUCT(1.03, 42.9, 17.6, 50.4),
                            [DS_CLASS_LOSS] = PRODUCT(0.936, 16.7, 185, 0),
                            [DS_CLASS_LOSS_BACKWARD] = PRODUCT(0.907, 19.4, 0, 0),
                            [DS_CLASS_ATTENTION] = PRODUCT(1.51, 0, 325, 42.4),
                            [DS_CLASS_ATTENTION_BACKWARD] = PRODUCT(1.08, 99.8, 343, 12.1),
                            [DS_CLASS_NORM] = MEMORY(0.742),
                            [DS_CLASS_NORM_BACKWARD] = MEMORY(0.783),
                            [DS_CLASS_ELEMENTWISE] = MEMORY(0.459),
                            [DS_CLASS_EMBEDDING] = MEMORY(0.362),
                            [DS_CLASS_EMBEDDING_BACKWARD] = MEMORY(0.501),
                            [DS_CLASS_REDUCE] = MEMORY(0.485),
                            [DS_CLASS_OPTIMIZER] = MEMORY(1.38),
                            [DS_CLASS_COPY] = MEMORY(0.971),
                            [DS_CLASS_COMM] = MEMORY(1),
                            [DS_CLASS_VIEW] = MEMORY(1),
                        },
                },
};
