/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan serve: what a server takes, before it is made. */
#include "common/plan_serve.h"
#include "accel/accel.h"
#include "ckpt/gguf_model.h"
#include "common/hub_flag.h"
#include "common/output.h"
#include "common/plan_run.h"
#include "common/size_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FITS = 0, TOO_LARGE = 3 };
/* Measured: what stays in memory of a folder's file beside its weights. A GGUF file in blocks is
 * read and closed. */
static uint64_t folder_bytes(const ds_serve_params *params)
{
    return params->source.gguf == NULL ? 1 << 20 : 0;
}

static ds_status plan(plan_serve_run *r, const ds_serve_params *params, const dsi_device *device,
                      ds_serve_needs *needs_out)
{
    DS_TRY(dsi_serve_plan_on(r->ctx, params, (uint32_t)r->o->ranks, device, needs_out, &r->times));
    needs_out->process += folder_bytes(params);
    needs_out->total += folder_bytes(params);
    return DS_OK;
}

static ds_status open_gguf(plan_serve_run *r)
{
    char *text = NULL;
    DS_TRY(dsi_gguf_config_text(r->ctx, r->o->model, &text));
    const ds_status status = ds_model_from_text(r->ctx, text, &r->model);
    free(text);
    return status;
}

static ds_status open_model(plan_serve_run *r)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/config.json", r->o->model != NULL ? r->o->model : "");
    DS_TRY(plan_serve_is_gguf(r->o)
               ? open_gguf(r)
               : ds_model_from_config(r->ctx, r->o->model != NULL ? path : r->o->model_config,
                                      &r->model));
    const char *draft = r->o->draft_model;
    if (draft == NULL) {
        return DS_OK;
    }
    (void)snprintf(path, sizeof path, "%s%s", draft,
                   plan_serve_is_config(draft) ? "" : "/config.json");
    return ds_model_from_config(r->ctx, path, &r->draft_model);
}

static ds_status find_memory(plan_serve_run *r)
{
    const plan_serve_options *o = r->o;
    if (o->device != NULL) {
        DS_TRY(dsi_device_load(r->ctx, o->device, &r->device));
        r->device = dsi_device_of_rank(&r->device, (uint32_t)o->ranks, (uint32_t)o->threads);
        r->memory = (uint64_t)r->device.memory_bytes;
        (void)snprintf(r->memory_of, sizeof r->memory_of, "of %s", r->device.name);
    }
    if (o->memory != NULL) {
        DS_TRY(size_parse_binary(r->ctx, "memory", o->memory, &r->memory));
        if (r->memory == 0) {
            return ds_fail(r->ctx, DS_ERR_ARG, "--memory: expected at least one byte, found %s",
                           o->memory);
        }
        (void)snprintf(r->memory_of, sizeof r->memory_of, "of --memory");
    }
    return DS_OK;
}

static ds_status fill_params(plan_serve_run *r)
{
    const plan_serve_options *o = r->o;
    const bool other = o->device != NULL && !r->device.shared;
    r->params = (ds_serve_params){.source = {.model = r->model,
                                             .accelerator = o->accelerator != NULL ? o->accelerator
                                                            : other                ? "null"
                                                                                   : NULL}};
    serve_flags_set(&o->sizes, &r->params);
    r->params.embeddings = true;
    if (r->draft_model != NULL) {
        r->draft = (ds_generator_params){.model = r->draft_model,
                                         .dtype = r->params.source.dtype,
                                         .accelerator = r->params.source.accelerator};
        r->params.draft = &r->draft;
        r->params.max_draft = o->sizes.draft > 0 ? o->sizes.draft : 4;
    }
    if (plan_serve_is_gguf(o)) { /* without blocks it is unpacked to bf16 */
        r->params.source.gguf = o->quantize != NULL ? o->model : NULL;
        r->params.source.dtype =
            r->params.source.dtype != DS_DTYPE_NONE ? r->params.source.dtype : DS_DTYPE_BF16;
    }
    if (plan_serve_keeps_blocks(o) && !plan_serve_is_gguf(o)) {
        r->params.source.weights = o->model;
        r->params.source.keep_blocks = true;
    } else if (o->quantize != NULL && !plan_serve_keeps_blocks(o)) {
        r->params.source.quantize = ds_dtype_from_name(o->quantize);
        if (r->params.source.quantize == DS_DTYPE_NONE) {
            return ds_fail(r->ctx, DS_ERR_ARG, "--quantize: there is no type \"%s\"", o->quantize);
        }
    }
    return serve_flags_configure(r->ctx, &o->sizes, &r->params);
}

bool plan_serve_fits(const plan_serve_run *r, uint64_t total)
{
    return r->memory == 0 || total <= r->memory;
}

int64_t plan_serve_room(const plan_serve_run *r, const ds_serve_needs *n)
{
    const uint64_t rest = n->total - n->keys_values;
    const uint64_t most = n->keys_values == 0 ? (uint64_t)n->kv_tokens
                          : r->memory > rest  ? (r->memory - rest) / n->position / 64 * 64
                                              : 0;
    const int64_t text = dsi_serve_longest_text(r->model, n->max_length, 64);
    return most >= (uint64_t)text ? (int64_t)most : 0;
}

/* Fewer positions, keys and values in int8, blocks for weights, and all of them: each that fits. */
static ds_status find_changes(plan_serve_run *r, plan_serve_change *changes, uint32_t *n_out)
{
    static const char *const types[] = {"", "q8_0", "q4_0"};
    *n_out = 0;
    for (size_t k = 0; k < 2 * sizeof types / sizeof *types; ++k) {
        ds_serve_params p = r->params;
        ds_serve_needs n = r->needs;
        const size_t t = k / 2;
        const bool codes = k % 2 == 1;
        if (codes) {
            if (p.kv_type != DS_DTYPE_NONE) {
                continue; /* it was asked for */
            }
            p.kv_type = DS_DTYPE_I8;
        }
        if (t > 0) {
            p.source.quantize = ds_dtype_from_name(types[t]);
            if (plan_serve_keeps_blocks(r->o) || p.source.quantize == r->params.source.quantize ||
                r->params.source.quantize != DS_DTYPE_NONE) {
                continue;
            }
        }
        if (k > 0) {
            DS_TRY(plan(r, &p, NULL, &n));
        }
        const int64_t most = plan_serve_room(r, &n);
        const bool whole = plan_serve_fits(r, n.total);
        if (!whole && most == 0) {
            continue;
        }
        plan_serve_change *c = &changes[(*n_out)++];
        const char *flag = t > 0 ? " --quantize " : "";
        const char *cells = codes ? " --kv_type int8" : "";
        if (whole) {
            (void)snprintf(c->flags, sizeof c->flags, "%s%s%s", flag, types[t], cells);
            c->total = n.total;
        } else {
            (void)snprintf(c->flags, sizeof c->flags, "%s%s%s --kv_tokens %lld", flag, types[t],
                           cells, (long long)most);
            c->total = n.total - n.keys_values + (uint64_t)most * n.position;
        }
    }
    return DS_OK;
}

/* With weights on disk, all but max_in_cpu elements. */
static ds_status plan_away(const plan_serve_run *r, ds_serve_params p, int64_t max_in_cpu,
                           ds_serve_needs *needs_out)
{
    offload_flags flags = {.device = "nvme", .nvme_path = "DIR", .max_in_cpu = max_in_cpu};
    ds_status status = offload_flags_open(r->ctx, &flags, NULL, 1);
    p.source.config = flags.config;
    status = status < 0
                 ? status
                 : dsi_serve_plan_on(r->ctx, &p, (uint32_t)r->o->ranks, NULL, needs_out, NULL);
    offload_flags_close(&flags);
    needs_out->total += folder_bytes(&p);
    return status;
}

/* Weights on disk, of which as many stay in memory as there is room for; else keys and values, too.
 */
static ds_status find_offload(const plan_serve_run *r, plan_serve_change *changes, uint32_t *n_out)
{
    ds_serve_params p = r->params;
    ds_serve_needs none, some;
    if (p.source.config != NULL || (r->o->device != NULL && !r->device.shared)) {
        return DS_OK;
    }
    DS_TRY(plan_away(r, p, 0, &none));
    p.source.offload_kv = !plan_serve_fits(r, none.total);
    DS_TRY(p.source.offload_kv ? plan_away(r, p, 0, &none) : DS_OK);
    if (!plan_serve_fits(r, none.total)) {
        return DS_OK;
    }
    const int64_t room = (int64_t)((r->memory - none.total) / ds_dtype_bytes(none.dtype));
    DS_TRY(plan_away(r, p, room, &some));
    const bool stay = plan_serve_fits(r, some.total);
    plan_serve_change *c = &changes[(*n_out)++];
    (void)snprintf(c->flags, sizeof c->flags,
                   " --offload_param nvme --nvme_path DIR --max_in_cpu %lld%s",
                   stay ? (long long)room : 0LL, p.source.offload_kv ? " --offload_kv" : "");
    c->total = stay ? some.total : none.total;
    return DS_OK;
}

static ds_status report(plan_serve_run *r, int *code)
{
    plan_serve_change changes[MOST_CHANGES];
    uint32_t n_changes = 0;
    DS_TRY(open_model(r));
    DS_TRY(find_memory(r));
    DS_TRY(fill_params(r));
    DS_TRY(plan(r, &r->params, r->o->device != NULL ? &r->device : NULL, &r->needs));
    if (r->memory_of[0] == '\0') {
        dsi_accel_choice accel;
        DS_TRY(dsi_accel_choose_to_plan(r->ctx, r->params.source.accelerator, &accel));
        const bool on_device = dsi_accel_device_memory(r->ctx, &accel) > 0;
        r->memory = r->needs.available;
        (void)snprintf(r->memory_of, sizeof r->memory_of,
                       on_device         ? "of the device"
                       : r->o->ranks > 1 ? "of this machine for each"
                                         : "of this machine");
    }
    if (!plan_serve_fits(r, r->needs.total)) {
        DS_TRY(find_changes(r, changes, &n_changes));
        DS_TRY(find_offload(r, changes, &n_changes));
    }
    *code = plan_serve_fits(r, r->needs.total) ? FITS : TOO_LARGE;
    if (r->o->json != NULL) {
        return plan_serve_write_json(r, changes, n_changes);
    }
    plan_serve_print(r, changes, n_changes);
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, plan_serve_options *o, int *code)
{
    const char *const inputs[] = {o->model_config, o->device};
    plan_serve_run r = {.ctx = ctx, .o = o};
    DS_TRY(plan_serve_check_blocks(ctx, o));
    DS_TRY(plan_serve_find(ctx, o));
    DS_TRY(hub_flag_spare(ctx, o->model_found, "json", o->json));
    DS_TRY(output_not_input(ctx, o->json, inputs, sizeof inputs / sizeof *inputs));
    DS_TRY(o->json != NULL ? output_check(ctx, o->json) : DS_OK);
    DS_TRY(output_free(ctx, o->json, "{\n  \"ds_plan_serve\": ", o->overwrite));
    ds_status status = offload_flags_open(ctx, &o->sizes.offload, o->model, (uint32_t)o->ranks);
    status = status < 0 ? status : report(&r, code);
    offload_flags_close(&o->sizes.offload);
    ds_model_destroy(&r.model);
    ds_model_destroy(&r.draft_model);
    return status;
}

int plan_serve(int argc, char **argv)
{
    enum { FAILED = 1, USE = 2 };
    plan_serve_options o = {0};
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx *ctx = NULL;
    bool help = false;
    int code = USE;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return FAILED;
    }
    ds_status status = plan_serve_parse(ctx, argc, argv, &o, &help);
    if (status >= 0 && !help) {
        ds_ctx_destroy(&ctx);
        params.n_threads = (uint32_t)o.threads;
        code = FAILED;
        status = ds_ctx_create(&params, &ctx);
        status = status < 0 ? status : run(ctx, &o, &code);
        code = status < 0 ? FAILED : code;
    }
    if (status < 0) {
        (void)fprintf(stderr, "ds_plan: %s\n", ds_ctx_error(ctx));
    }
    free(o.model_found);
    free(o.draft_found);
    ds_ctx_destroy(&ctx);
    return status >= 0 && help ? FITS : code;
}
