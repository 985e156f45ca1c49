/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of ds_plan serve: what is asked for (plan_serve_options.c), plans of it (plan_serve.c),
 * what is said of them (plan_serve_text.c). Called by one another alone. */
#ifndef DS_TOOLS_COMMON_PLAN_SERVE_H
#define DS_TOOLS_COMMON_PLAN_SERVE_H

#include "common/serve_flags.h"
#include "serve/serve_plan.h"

#include <deepspeed/deepspeed.h>

enum { MOST_CHANGES = 8, CHANGE_BYTES = 128 };

typedef struct plan_serve_options {
    char *draft_found;
    const char *model, *model_revision, *model_config, *draft_model, *quantize, *memory, *device;
    const char *accelerator, *json;
    char *model_found;
    int64_t threads, ranks;
    serve_flags sizes;
    bool overwrite;
} plan_serve_options;

typedef struct plan_serve_run {
    ds_ctx *ctx;
    const plan_serve_options *o;
    ds_model *model, *draft_model;
    ds_generator_params draft;
    dsi_device device; /* a rank's part */
    ds_serve_params params;
    ds_serve_needs needs;
    dsi_serve_times times;
    uint64_t memory;
    char memory_of[96];
} plan_serve_run;

/* One that fits in place of one that does not. */
typedef struct plan_serve_change {
    char flags[CHANGE_BYTES];
    uint64_t total;
} plan_serve_change;

/* ---- plan_serve_options.c ---- */
ds_status plan_serve_parse(ds_ctx *ctx, int argc, char **argv, plan_serve_options *o,
                           bool *help_out);
/* --quantize file: the own blocks of a folder or GGUF file. */
bool plan_serve_keeps_blocks(const plan_serve_options *o);
ds_status plan_serve_check_blocks(ds_ctx *ctx, const plan_serve_options *o);
bool plan_serve_is_gguf(const plan_serve_options *o);
bool plan_serve_is_config(const char *path);
/* Folders of names, in o->model and o->draft_model. */
ds_status plan_serve_find(ds_ctx *ctx, plan_serve_options *o);

/* ---- plan_serve.c ---- */
bool plan_serve_fits(const plan_serve_run *r, uint64_t total);
/* Positions that there is room for, in whole blocks of 64; 0: not for one text. */
int64_t plan_serve_room(const plan_serve_run *r, const ds_serve_needs *n);

/* ---- plan_serve_text.c ---- */
void plan_serve_print(const plan_serve_run *r, const plan_serve_change *changes,
                      uint32_t n_changes);
ds_status plan_serve_write_json(const plan_serve_run *r, const plan_serve_change *changes,
                                uint32_t n_changes);

#endif
