/* SPDX-License-Identifier: Apache-2.0 */
/* Several adapters, as one or for a merge: flags and work of ds_checkpoint combine and merge. */
#ifndef DS_TOOLS_COMBINE_ADAPTERS_H
#define DS_TOOLS_COMBINE_ADAPTERS_H

#include "common/args.h"
#include "common/unpacked.h"

#include <deepspeed/adapter.h>

typedef struct combine_flags {
    dsi_arg_list weights;
    const char *combination;
    const char *majority;
    int64_t svd_rank, seed;
    double density;
    bool combination_given, svd_rank_given, density_given, majority_given, seed_given;
} combine_flags;

#define COMBINE_FLAG_ROWS(f)                                                                       \
    {.name = "weights",                                                                            \
     .type = DSI_ARG_LIST,                                                                         \
     .out = &(f)->weights,                                                                         \
     .value = "W,…",                                                                               \
     .doc = "combine, merge: what each adapter counts, in their order, as 0.7,-0.3 (negative: it " \
            "is taken away). Default: 1 each."},                                                   \
        {.name = "combination",                                                                    \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f)->combination,                                                                 \
         .given_out = &(f)->combination_given,                                                     \
         .value = "WAY",                                                                           \
         .def = "linear",                                                                          \
         .choices = "linear|cat|svd|ties|dare_linear|dare_ties|magnitude_prune",                   \
         .doc = "combine: linear (matrices are added; one rank), cat (side by side: exactly the "  \
                "sum of what the adapters do, the sum of their ranks), svd (of that sum the "      \
                "largest singular values); or, of matrices of which --density stays, "             \
                "magnitude_prune (the largest elements, added), ties (of those the ones of one "   \
                "sign, and their mean), dare_linear and dare_ties (any elements, enlarged)."},     \
        {.name = "svd_rank",                                                                       \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->svd_rank,                                                                    \
         .given_out = &(f)->svd_rank_given,                                                        \
         .value = "R",                                                                             \
         .def = "0",                                                                               \
         .max = 1 << 20,                                                                           \
         .doc = "combine: the rank of what svd makes; default: the largest of the adapters'."},    \
        {.name = "density",                                                                        \
         .type = DSI_ARG_REAL,                                                                     \
         .out = &(f)->density,                                                                     \
         .given_out = &(f)->density_given,                                                         \
         .value = "D",                                                                             \
         .def = "0",                                                                               \
         .max = 1,                                                                                 \
         .doc = "combine: the part of each matrix that stays, of ties, dare_linear, dare_ties "    \
                "and magnitude_prune, which need it."},                                            \
        {.name = "majority_sign_method",                                                           \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f)->majority,                                                                    \
         .given_out = &(f)->majority_given,                                                        \
         .value = "total|frequency",                                                               \
         .def = "total",                                                                           \
         .choices = "total|frequency",                                                             \
         .doc = "combine: of ties and dare_ties, the sign that stays: that of the sum, or that "   \
                "of more adapters."},                                                              \
    {                                                                                              \
        .name = "seed", .type = DSI_ARG_INT, .out = &(f)->seed, .given_out = &(f)->seed_given,     \
        .value = "N", .def = "0", .max = UINT32_MAX,                                               \
        .doc = "combine: of dare_linear and dare_ties, which elements stay."                       \
    }

/* any: --weights counts, too. */
bool combine_flags_given(const combine_flags *flags, bool any);

/* Adapters that are merged one after the other, with what each counts. */
typedef struct merge_list {
    ds_adapter **items;
    double *weights; /* NULL: 1 each */
    size_t n;
} merge_list;

/* folders[n]. Whatever the outcome, the caller closes the list. */
ds_status merge_list_open(ds_ctx *ctx, const char *const *folders, size_t n,
                          const dsi_arg_list *weights, merge_list *list);
void merge_list_close(merge_list *list);

/* words: the command, OUT, the adapters' folders. Prints what was written. */
ds_status combine_adapters(ds_ctx *ctx, const combine_flags *flags, const dsi_arg_list *words);

/* The adapter of one folder, or what several do together, each times its weight (weights->n 0: 1):
 * that is made in a folder at `place`, which stays until the adapter's weights have been read, and
 * which unpacked_remove() takes away. */
ds_status combine_open(ds_ctx *ctx, const dsi_arg_list *folders, const dsi_arg_list *weights,
                       unpacked *place, ds_adapter **adapter_out);

#endif
