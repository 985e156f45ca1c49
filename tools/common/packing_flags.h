/* SPDX-License-Identifier: Apache-2.0 */
/* The flags that say in how many bits the frozen model beside an adapter is held, of ds_train,
 * ds_plan and ds_generate. Their names are those of transformers and TRL. */
#ifndef DSI_TOOLS_PACKING_FLAGS_H
#define DSI_TOOLS_PACKING_FLAGS_H

#include "common/args.h"

#include <deepspeed/adapter.h>

typedef struct packing_flags {
    bool four, eight, fp8, twice;
    const char *type;
    bool type_given;
} packing_flags;

/* Rows of a table of flags; f: a packing_flags *. */
#define PACKING_ROWS(f)                                                                            \
    {.name = "load_in_4bit",                                                                       \
     .type = DSI_ARG_SWITCH,                                                                       \
     .out = &(f)->four,                                                                            \
     .doc = "Hold the frozen linear layers beside the adapter in 4 bits (QLoRA)."},                \
        {.name = "bnb_4bit_quant_type",                                                            \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f)->type,                                                                        \
         .value = "nf4",                                                                           \
         .def = "nf4",                                                                             \
         .choices = "nf4",                                                                         \
         .given_out = &(f)->type_given,                                                            \
         .doc = "The 4-bit format: quantiles of the normal distribution."},                        \
        {.name = "bnb_4bit_use_double_quant",                                                      \
         .type = DSI_ARG_SWITCH,                                                                   \
         .out = &(f)->twice,                                                                       \
         .doc = "Its scales in 8 bits: 4.13 bits a weight instead of 4.5."},                       \
        {.name = "load_in_8bit",                                                                   \
         .type = DSI_ARG_SWITCH,                                                                   \
         .out = &(f)->eight,                                                                       \
         .doc = "Hold them in 8-bit whole numbers, with a scale a row."},                          \
    {                                                                                              \
        .name = "load_in_fp8", .type = DSI_ARG_SWITCH, .out = &(f)->fp8,                           \
        .doc = "Hold them in 8-bit reals (e4m3), with a scale a row."                              \
    }

/* What contradicts, or goes without an adapter: ERR_ARG. */
ds_status packing_flags_check(ds_ctx *ctx, const packing_flags *flags, bool has_adapter);
/* Packs the model beside the adapter as the flags say. */
ds_status packing_flags_set(const packing_flags *flags, ds_adapter *adapter);

#endif
