/* SPDX-License-Identifier: Apache-2.0 */
/* The flags that say where a model's weights are while it generates. */
#ifndef DSI_TOOLS_OFFLOAD_FLAGS_H
#define DSI_TOOLS_OFFLOAD_FLAGS_H

#include "common/args.h"

#include <deepspeed/config.h>

typedef struct offload_flags {
    const char *config_path, *device, *nvme_path;
    int64_t max_in_cpu;
    bool most_given; /* --max_in_cpu */
    bool kv;
    ds_config *config; /* offload_flags_open's; NULL: weights are in memory */
} offload_flags;

/* Rows of a table of flags; f: an offload_flags *. */
#define OFFLOAD_ROWS(f)                                                                            \
    {.name = "offload_param",                                                                      \
     .type = DSI_ARG_TEXT,                                                                         \
     .out = &(f)->device,                                                                          \
     .value = "cpu|nvme",                                                                          \
     .choices = "cpu|nvme",                                                                        \
     .doc = "Weights come to memory as they are used: from disk, or from the host's memory to "    \
            "another device (ZeRO-Inference). For models larger than memory; large batches pay "   \
            "for the reading."},                                                                   \
        {.name = "nvme_path",                                                                      \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f)->nvme_path,                                                                   \
         .value = "DIR,…",                                                                         \
         .doc =                                                                                    \
             "Folders of the disks for a copy of those weights, as long as the process runs; "     \
             "default: they are read from the model's own files, which need its --dtype, at less " \
             "speed."},                                                                            \
        {.name = "max_in_cpu",                                                                     \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->max_in_cpu,                                                                  \
         .value = "N",                                                                             \
         .def = "0",                                                                               \
         .max = 1e15,                                                                              \
         .given_out = &(f)->most_given,                                                            \
         .doc = "Weights that nvme leaves in memory, the first ones, in elements."},               \
    {                                                                                              \
        .name = "deepspeed_config", .type = DSI_ARG_TEXT, .out = &(f)->config_path,                \
        .value = "FILE",                                                                           \
        .doc = "A configuration of DeepSpeed's inference engines (init_inference's, the ragged "   \
               "one's) or MII's, in force as docs/config.md says; or of training: its "            \
               "zero_optimization.offload_param and aio say where weights are."                    \
    }

/* Makes the configuration that they ask for, for `ranks` ranks; model: the folder where weights are
 * by default, NULL: none; the caller closes the flags also
 * after an error. Errors: those of ds_config; ERR_ARG (flags that contradict each other). */
ds_status offload_flags_open(ds_ctx *ctx, offload_flags *flags, const char *model, uint32_t ranks);
/* Whether the file is an inference engine's: it goes through ds_generator_configure. */
bool offload_flags_infer(const offload_flags *flags);
/* Whether a file says in what numbers the model computes. */
bool offload_says_dtype(const ds_config *config);
void offload_flags_close(offload_flags *flags);

#endif
