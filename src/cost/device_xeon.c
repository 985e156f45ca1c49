/* SPDX-License-Identifier: Apache-2.0 */
/* A shipped profile that was measured: `ds_bench --profile` on two cores of an Intel Xeon with AMX
 * (family 6, model 207, virtual, 23 GiB; 21 November 2026), collectives of two ranks over shared
 * memory from docs/measurements/comm.md (64 MiB). An example of what to expect of such a processor;
 * measure your own. */
#include "cost/device_measured.h"
#include "cost/device_rows.h"

const dsi_device
    dsi_device_xeon =
        {
            .name = "xeon-amx-2",
            .source = "measured on two cores of an Intel Xeon with AMX, see docs/internals/cost.md",
            .peak = {3.82e+11, 2.77e+12, 4.04e+11},
            .latency = 5e-7,
            .memory_bytes = 2.53e+10,
            .memory_bandwidth = 4.82e+10,
            .shared = true,
            .cores = {.n = 2},
            .in_place = true,
            .ranks_per_node = 2,
            .node = {.name = "shm",
                     .latency = 4e-7,
                     .bandwidth = 23.2e9,
                     .all_reduce = 1.0,
                     .reduce_scatter = 0.46,
                     .all_gather = 0.65},
            .net = {.name = "ethernet-10",
                    .latency = 50e-6,
                    .bandwidth = 1.25e9,
                    .all_reduce = 0.8,
                    .reduce_scatter = 0.8,
                    .all_gather = 0.8},
            .host_memory_bytes = 2.53e+10,
            .host_bandwidth = 4.82e+10,
            .host_link = 2.41e+10,
            .host_adam = 1.7e9,
            .disk_read = 1.1e9,
            .disk_write = 1.6e9,
            .disk_latency = 2e-4,
            .rates =
                {
                    [DSI_PEAK_F32] =
                        {
                            [DS_CLASS_LINEAR] = PRODUCT(0.919, 43.3, 12.6, 0),
                            [DS_CLASS_LINEAR_DW] = PRODUCT(0.944, 46.2, 39.3, 0.0811),
                            [DS_CLASS_LOSS] = PRODUCT(0.95, 14.4, 0, 193),
                            [DS_CLASS_LOSS_BACKWARD] = PRODUCT(1.11, 17.3, 0, 298),
                            [DS_CLASS_ATTENTION] = PRODUCT(1.04, 308, 197, 8.92),
                            [DS_CLASS_ATTENTION_BACKWARD] = PRODUCT(0.879, 103, 187, 0.528),
                            [DS_CLASS_NORM] = MEMORY(0.571),
                            [DS_CLASS_NORM_BACKWARD] = MEMORY(0.522),
                            [DS_CLASS_ELEMENTWISE] = MEMORY(0.592),
                            [DS_CLASS_EMBEDDING] = MEMORY(0.538),
                            [DS_CLASS_EMBEDDING_BACKWARD] = MEMORY(0.503),
                            [DS_CLASS_REDUCE] = MEMORY(0.618),
                            [DS_CLASS_OPTIMIZER] = MEMORY(1.22),
                            [DS_CLASS_COPY] = MEMORY(1.24),
                            [DS_CLASS_COMM] = MEMORY(1),
                            [DS_CLASS_VIEW] = MEMORY(1),
                        },
                    [DSI_PEAK_BF16] =
                        {
                            [DS_CLASS_LINEAR] = PRODUCT(0.882, 181, 5.6, 24.7),
                            [DS_CLASS_LINEAR_DW] = PRODUCT(0.777, 86.7, 72.9, 171),
                            [DS_CLASS_LOSS] = PRODUCT(1.54, 168, 0, 870),
                            [DS_CLASS_LOSS_BACKWARD] = PRODUCT(1.03, 301, 0, 362),
                            [DS_CLASS_ATTENTION] = PRODUCT(0.514, 56.2, 200, 47.3),
                            [DS_CLASS_ATTENTION_BACKWARD] = PRODUCT(0.532, 480, 222, 3.79),
                            [DS_CLASS_NORM] = MEMORY(0.434),
                            [DS_CLASS_NORM_BACKWARD] = MEMORY(0.498),
                            [DS_CLASS_ELEMENTWISE] = MEMORY(0.384),
                            [DS_CLASS_EMBEDDING] = MEMORY(0.522),
                            [DS_CLASS_EMBEDDING_BACKWARD] = MEMORY(0.553),
                            [DS_CLASS_REDUCE] = MEMORY(0.548),
                            [DS_CLASS_OPTIMIZER] = MEMORY(1.18),
                            [DS_CLASS_COPY] = MEMORY(1.15),
                            [DS_CLASS_COMM] = MEMORY(1),
                            [DS_CLASS_VIEW] = MEMORY(1),
                        },
                    [DSI_PEAK_F16] =
                        {
                            [DS_CLASS_LINEAR] = PRODUCT(0.968, 15.2, 2.74, 38.9),
                            [DS_CLASS_LINEAR_DW] = PRODUCT(0.944, 48.3, 41.5, 0),
                            [DS_CLASS_LOSS] = PRODUCT(1.1, 0, 0, 506),
                            [DS_CLASS_LOSS_BACKWARD] = PRODUCT(1.14, 14.1, 0, 328),
                            [DS_CLASS_ATTENTION] = PRODUCT(1.46, 292, 267, 39.7),
                            [DS_CLASS_ATTENTION_BACKWARD] = PRODUCT(1.26, 970, 149, 32),
                            [DS_CLASS_NORM] = MEMORY(0.557),
                            [DS_CLASS_NORM_BACKWARD] = MEMORY(0.497),
                            [DS_CLASS_ELEMENTWISE] = MEMORY(0.421),
                            [DS_CLASS_EMBEDDING] = MEMORY(0.495),
                            [DS_CLASS_EMBEDDING_BACKWARD] = MEMORY(0.507),
                            [DS_CLASS_REDUCE] = MEMORY(0.596),
                            [DS_CLASS_OPTIMIZER] = MEMORY(1.18),
                            [DS_CLASS_COPY] = MEMORY(1.18),
                            [DS_CLASS_COMM] = MEMORY(1),
                            [DS_CLASS_VIEW] = MEMORY(1),
                        },
                },
};
