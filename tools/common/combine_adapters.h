/* SPDX-License-Identifier: Apache-2.0 */
/* Several adapters as one: the flags and the work of ds_checkpoint combine. */
#ifndef DS_TOOLS_COMBINE_ADAPTERS_H
#define DS_TOOLS_COMBINE_ADAPTERS_H

#include "common/args.h"
#include "common/unpacked.h"

#include <deepspeed/adapter.h>

typedef struct combine_flags {
    dsi_arg_list weights;
    const char *combination;
    bool combination_given;
} combine_flags;

#define COMBINE_FLAG_ROWS(f)                                                                       \
    {.name = "weights",                                                                            \
     .type = DSI_ARG_LIST,                                                                         \
     .out = &(f)->weights,                                                                         \
     .value = "W,…",                                                                               \
     .doc = "combine: what each adapter counts, in their order, as 0.7,-0.3 (negative: it is "     \
            "taken away). Default: 1 each."},                                                      \
    {                                                                                              \
        .name = "combination", .type = DSI_ARG_TEXT, .out = &(f)->combination,                     \
        .given_out = &(f)->combination_given, .value = "WAY", .def = "linear",                     \
        .doc =                                                                                     \
            "combine: linear (matrices are added; one rank), or cat (side by side: exactly the "   \
            "sum of what the adapters do, the sum of their ranks)."                                \
    }

bool combine_flags_given(const combine_flags *flags);

/* words: the command, OUT, the adapters' folders. Prints what was written. */
ds_status combine_adapters(ds_ctx *ctx, const combine_flags *flags, const dsi_arg_list *words);

/* The adapter of one folder, or what several do together, each times its weight (weights->n 0: 1):
 * that is made in a folder at `place`, which stays until the adapter's weights have been read, and
 * which unpacked_remove() takes away. */
ds_status combine_open(ds_ctx *ctx, const dsi_arg_list *folders, const dsi_arg_list *weights,
                       unpacked *place, ds_adapter **adapter_out);

#endif
