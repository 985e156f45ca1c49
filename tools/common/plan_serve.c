/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan serve: what a server takes, before it is made. */
#include "ckpt/gguf_model.h"
#include "common/args.h"
#include "common/hub_flag.h"
#include "common/output.h"
#include "common/plan_run.h"
#include "common/serve_flags.h"
#include "common/size_text.h"
#include "common/unpacked.h"
#include "serve/serve_plan.h"

#include <deepspeed/deepspeed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FITS = 0, TOO_LARGE = 3, MOST_CHANGES = 8, CHANGE_BYTES = 128 };
/* Measured: what ds_serve has beside its server, tokenizer and connections. */
enum { SERVE_BYTES = 1 << 20 };

typedef struct serve_options {
    char *draft_found;
    const char *model, *model_revision, *model_config, *draft_model, *quantize, *memory, *device;
    const char *accelerator, *json;
    char *model_found;
    int64_t threads, ranks;
    serve_flags sizes;
    bool overwrite;
} serve_options;

static const char about[] =
    "What ds_serve takes before it runs, from the plans that it would build: weights, keys and "
    "values, a batch, whether they fit, and what would make them fit. No weights are read (but "
    "beside --quantize file of a folder). With --device, how fast it answers, too.\n";

static const char after[] =
    "\nExamples:\n"
    "  ds_plan serve --model Qwen/Qwen2.5-0.5B-Instruct --max_sequences 32\n"
    "  ds_plan serve --model_config 70b.json --quantize q4_0 --memory 64GB\n"
    "  ds_plan serve --model_config 8b.json --dtype bf16 --device h100-sxm\n\n"
    "Exit codes: 0 it fits, 1 failed, 2 wrong use, 3 does not fit.\n";

static ds_status parse(ds_ctx *ctx, int argc, char **argv, serve_options *o, bool *help_out)
{
    const dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "What is served"},
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->model,
         .value = "DIR|FILE.gguf|ORG/NAME",
         .doc = "Model folder, GGUF file, or the name of a model in the Hugging Face cache; only "
                "its config.json, or the head of the file, is read."},
        {.name = "model_revision",
         .type = DSI_ARG_TEXT,
         .out = &o->model_revision,
         .value = "REV",
         .doc = "Of a --model by its name: branch, tag or commit; default: main."},
        {.name = "model_config",
         .type = DSI_ARG_TEXT,
         .out = &o->model_config,
         .value = "FILE",
         .doc = "A config.json."},
        SERVE_DTYPE_ROW(&o->sizes),
        {.name = "quantize",
         .type = DSI_ARG_TEXT,
         .out = &o->quantize,
         .value = "TYPE",
         .doc = "Type of blocks of the linear layers' matrices, as ds_serve's; file: of a --model "
                "of GPTQ, AWQ or packed compressed-tensors each matrix as it is there, for which "
                "scales and zero points are read, and of a GGUF file each in its own type."},
        SERVE_ROWS(&o->sizes),
        {.name = "draft_model",
         .type = DSI_ARG_TEXT,
         .out = &o->draft_model,
         .value = "DIR|FILE|ORG/NAME",
         .doc = "Folder, or name in the Hugging Face cache, of the smaller model that makes the "
                "guesses of --draft (then 4 by "
                "default), or a config.json: its memory is counted, too."},
        {.type = DSI_ARG_HEADING, .doc = "Where it runs"},
        {.name = "memory",
         .type = DSI_ARG_TEXT,
         .out = &o->memory,
         .value = "BYTES",
         .doc = "What there is, as 16GiB; default: this machine's or its control group's, or "
                "the device's."},
        {.name = "device",
         .type = DSI_ARG_TEXT,
         .out = &o->device,
         .value = "NAME|FILE",
         .doc = "A shipped profile (h100-sxm, …) or a profile file, for memory and times."},
        {.name = "accelerator",
         .type = DSI_ARG_TEXT,
         .out = &o->accelerator,
         .value = "NAME",
         .doc = "Whose kernels; default: those of this machine."},
        {.name = "threads",
         .type = DSI_ARG_INT,
         .out = &o->threads,
         .value = "N",
         .def = "0",
         .max = 4096,
         .doc = "Threads; default: the cores that this process may use."},
        {.name = "ranks",
         .type = DSI_ARG_INT,
         .out = &o->ranks,
         .value = "N",
         .def = "1",
         .min = 1,
         .max = 1024,
         .doc = "Ranks of one host that share the layers; all figures are of one of them."},
        {.type = DSI_ARG_HEADING, .doc = "Output"},
        {.name = "json",
         .type = DSI_ARG_TEXT,
         .out = &o->json,
         .value = "FILE",
         .doc = "Write the figures as JSON, \"-\" for the terminal, instead of text."},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o->overwrite,
         .doc = "Let --json replace a file that is there and that it did not write."},
    };
    const dsi_args_spec spec = {.usage = "ds_plan serve [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    DS_TRY(dsi_args_parse_flags(ctx, &spec, argc, argv, help_out));
    if (!*help_out && (o->model != NULL) == (o->model_config != NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "expected either --model or --model_config");
    }
    return DS_OK;
}

/* --quantize file: the own blocks of a folder or GGUF file. */
static bool keeps_blocks(const serve_options *o)
{
    return o->quantize != NULL && strcmp(o->quantize, "file") == 0;
}

static ds_status check_blocks(ds_ctx *ctx, const serve_options *o)
{
    if (!keeps_blocks(o)) {
        return DS_OK;
    }
    if (o->model == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--quantize file: which matrices are in blocks of which type is read from "
                       "--model; of --model_config it is not planned, give a type");
    }
    return DS_OK;
}

static bool is_gguf(const serve_options *o)
{
    return o->model != NULL && unpacked_is_file(o->model);
}

/* Folder or name; a GGUF file is what it is, and what is in no block is bf16 as ds_serve makes it.
 */
static ds_status find_model(ds_ctx *ctx, serve_options *o)
{
    if (is_gguf(o)) {
        if (o->quantize != NULL && o->sizes.dtype == NULL) {
            o->sizes.dtype = "bf16"; /* as ds_serve has it */
        }
        return o->model_revision == NULL
                   ? DS_OK
                   : ds_fail(ctx, DS_ERR_ARG,
                             "--model %s is a file: --model_revision does not go with it",
                             o->model);
    }
    return hub_flag_find(ctx, "model", &o->model, o->model_revision,
                         keeps_blocks(o) ? DS_HUB_MODEL : DS_HUB_CONFIG, &o->model_found);
}

/* ---- the plan -------------------------------------------------------------------------------- */

typedef struct serve_run {
    ds_ctx *ctx;
    const serve_options *o;
    ds_model *model, *draft_model;
    ds_generator_params draft;
    dsi_device device; /* a rank's part */
    ds_serve_params params;
    ds_serve_needs needs;
    dsi_serve_times times;
    uint64_t memory;
    char memory_of[96];
} serve_run;

static ds_status plan(serve_run *r, const ds_serve_params *params, const dsi_device *device,
                      ds_serve_needs *needs_out)
{
    DS_TRY(dsi_serve_plan_on(r->ctx, params, (uint32_t)r->o->ranks, device, needs_out, &r->times));
    needs_out->process += SERVE_BYTES;
    needs_out->total += SERVE_BYTES;
    return DS_OK;
}

/* One that fits in place of one that does not. */
typedef struct change {
    char flags[CHANGE_BYTES];
    uint64_t total;
} change;

static bool is_config(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".json") == 0;
}

static ds_status find_draft(ds_ctx *ctx, serve_options *o)
{
    return o->draft_model == NULL || is_config(o->draft_model)
               ? DS_OK
               : hub_flag_find(ctx, "draft_model", &o->draft_model, NULL, DS_HUB_CONFIG,
                               &o->draft_found);
}

static ds_status open_gguf(serve_run *r)
{
    char *text = NULL;
    DS_TRY(dsi_gguf_config_text(r->ctx, r->o->model, &text));
    const ds_status status = ds_model_from_text(r->ctx, text, &r->model);
    free(text);
    return status;
}

static ds_status open_model(serve_run *r)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/config.json", r->o->model != NULL ? r->o->model : "");
    DS_TRY(is_gguf(r->o) ? open_gguf(r)
                         : ds_model_from_config(
                               r->ctx, r->o->model != NULL ? path : r->o->model_config, &r->model));
    const char *draft = r->o->draft_model;
    if (draft == NULL) {
        return DS_OK;
    }
    (void)snprintf(path, sizeof path, "%s%s", draft, is_config(draft) ? "" : "/config.json");
    return ds_model_from_config(r->ctx, path, &r->draft_model);
}

static ds_status find_memory(serve_run *r)
{
    const serve_options *o = r->o;
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

static ds_status fill_params(serve_run *r)
{
    const serve_options *o = r->o;
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
    if (is_gguf(o)) { /* without blocks it is unpacked to bf16 */
        r->params.source.gguf = o->quantize != NULL ? o->model : NULL;
        r->params.source.dtype =
            r->params.source.dtype != DS_DTYPE_NONE ? r->params.source.dtype : DS_DTYPE_BF16;
    }
    if (keeps_blocks(o) && !is_gguf(o)) {
        r->params.source.weights = o->model;
        r->params.source.keep_blocks = true;
    } else if (o->quantize != NULL && !keeps_blocks(o)) {
        r->params.source.quantize = ds_dtype_from_name(o->quantize);
        if (r->params.source.quantize == DS_DTYPE_NONE) {
            return ds_fail(r->ctx, DS_ERR_ARG, "--quantize: there is no type \"%s\"", o->quantize);
        }
    }
    return serve_flags_configure(r->ctx, &o->sizes, &r->params);
}

static bool fits(const serve_run *r, uint64_t total)
{
    return r->memory == 0 || total <= r->memory;
}

/* Positions that there is room for, in whole blocks of 64; 0: not for one text. */
static int64_t room(const serve_run *r, const ds_serve_needs *n)
{
    const uint64_t rest = n->total - n->keys_values;
    const uint64_t most = n->keys_values == 0 ? (uint64_t)n->kv_tokens
                          : r->memory > rest  ? (r->memory - rest) / n->position / 64 * 64
                                              : 0;
    const int64_t text = dsi_serve_longest_text(r->model, n->max_length, 64);
    return most >= (uint64_t)text ? (int64_t)most : 0;
}

/* Fewer positions, keys and values in int8, blocks for weights, and all of them: each that fits. */
static ds_status find_changes(serve_run *r, change *changes, uint32_t *n_out)
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
        if (t > 0 && ds_model_get_info(r->model)->pairs) {
            continue; /* not built for them */
        }
        if (t > 0) {
            p.source.quantize = ds_dtype_from_name(types[t]);
            if (keeps_blocks(r->o) || p.source.quantize == r->params.source.quantize ||
                r->params.source.quantize != DS_DTYPE_NONE) {
                continue;
            }
        }
        if (k > 0) {
            DS_TRY(plan(r, &p, NULL, &n));
        }
        const int64_t most = room(r, &n);
        const bool whole = fits(r, n.total);
        if (!whole && most == 0) {
            continue;
        }
        change *c = &changes[(*n_out)++];
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
static ds_status plan_away(const serve_run *r, ds_serve_params p, int64_t max_in_cpu,
                           ds_serve_needs *needs_out)
{
    offload_flags flags = {.device = "nvme", .nvme_path = "DIR", .max_in_cpu = max_in_cpu};
    ds_status status = offload_flags_open(r->ctx, &flags, NULL, 1);
    p.source.config = flags.config;
    status = status < 0
                 ? status
                 : dsi_serve_plan_on(r->ctx, &p, (uint32_t)r->o->ranks, NULL, needs_out, NULL);
    offload_flags_close(&flags);
    needs_out->total += SERVE_BYTES;
    return status;
}

/* Weights on disk, of which as many stay in memory as there is room for; else keys and values, too.
 */
static ds_status find_offload(const serve_run *r, change *changes, uint32_t *n_out)
{
    ds_serve_params p = r->params;
    ds_serve_needs none, some;
    if (p.source.config != NULL || (r->o->device != NULL && !r->device.shared)) {
        return DS_OK;
    }
    DS_TRY(plan_away(r, p, 0, &none));
    p.source.offload_kv = !fits(r, none.total) && !ds_model_get_info(r->model)->pairs;
    DS_TRY(p.source.offload_kv ? plan_away(r, p, 0, &none) : DS_OK);
    if (!fits(r, none.total)) {
        return DS_OK;
    }
    const int64_t room = (int64_t)((r->memory - none.total) / ds_dtype_bytes(none.dtype));
    DS_TRY(plan_away(r, p, room, &some));
    const bool stay = fits(r, some.total);
    change *c = &changes[(*n_out)++];
    (void)snprintf(c->flags, sizeof c->flags,
                   " --offload_param nvme --nvme_path DIR --max_in_cpu %lld%s",
                   stay ? (long long)room : 0LL, p.source.offload_kv ? " --offload_kv" : "");
    c->total = stay ? some.total : none.total;
    return DS_OK;
}

/* ---- what it says ---------------------------------------------------------------------------- */

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static void print_times(const serve_run *r)
{
    const ds_serve_needs *n = &r->needs;
    if (r->o->device == NULL) {
        return;
    }
    (void)printf("\non %s, by its profile, with half of %lld positions in each text:\n"
                 "  one text alone       %10.1f tokens a second\n"
                 "  %4lld texts together  %10.1f tokens a second\n"
                 "  prompts              %10.1f tokens a second\n",
                 r->device.name, (long long)n->max_length, 1.0 / r->times.one,
                 (long long)n->max_sequences, (double)n->max_sequences / r->times.all,
                 (double)n->max_batch_tokens / r->times.prompt);
}

static void print_fit(const serve_run *r, const change *changes, uint32_t n_changes)
{
    const ds_serve_needs *n = &r->needs;
    if (r->memory == 0) {
        (void)printf("\nhow much memory there is is not known\n");
        return;
    }
    if (fits(r, n->total)) {
        (void)printf("\nfits: %.1f MiB %s, %.1f MiB are left: room for %lld positions\n",
                     mib(r->memory), r->memory_of, mib(r->memory - n->total),
                     (long long)room(r, n));
        return;
    }
    (void)printf("\ndoes not fit: %.1f MiB %s, %.1f MiB too much\n", mib(r->memory), r->memory_of,
                 mib(n->total - r->memory));
    for (uint32_t i = 0; i < n_changes; ++i) {
        (void)printf("  would fit with%s: %.1f MiB\n", changes[i].flags, mib(changes[i].total));
    }
    if (n_changes == 0) {
        (void)printf("  no smaller number of positions, nor codes in int8, nor blocks of 4 bits, "
                     "nor a disk would do\n");
    }
}

static void print_text(const serve_run *r, const change *changes, uint32_t n_changes)
{
    const ds_serve_needs *n = &r->needs;
    const char *type = r->o->quantize;
    char stored[96] = "";
    if (n->stored > 0) {
        (void)snprintf(stored, sizeof stored, "  elsewhere           %12.2f  moved in every step\n",
                       mib(n->stored));
    }
    char states[96] = "";
    char ranks[64] = "on one rank";
    if (r->o->ranks > 1) {
        (void)snprintf(ranks, sizeof ranks, "of which this is one of %lld ranks",
                       (long long)r->o->ranks);
    }
    if (n->states > 0) {
        (void)snprintf(states, sizeof states,
                       "  states              %12.2f  of linear attention, %.2f KiB a text\n",
                       mib(n->states), (double)n->states / 1024.0 / (double)n->max_sequences);
    }
    (void)printf("%s: %.2f M parameters, %s%s%s, %s\n"
                 "%lld positions a text%s, %lld texts and %lld tokens a batch\n\n"
                 "memory, MiB\n"
                 "  weights             %12.2f\n"
                 "  keys and values     %12.2f  %lld positions of %.2f KiB, %s\n"
                 "%s"
                 "  a batch             %12.2f\n"
                 "  process             %12.2f\n"
                 "  sum                 %12.2f\n%s",
                 ds_model_get_info(r->model)->architecture, (double)n->parameters * 1e-6,
                 ds_dtype_name(n->dtype), type != NULL ? ", linear layers in " : "",
                 type != NULL ? type : "", ranks, (long long)n->max_length,
                 ds_model_get_info(r->model)->pairs ? ", as many of its source" : "",
                 (long long)n->max_sequences, (long long)n->max_batch_tokens, mib(n->weights),
                 mib(n->keys_values), (long long)n->kv_tokens, (double)n->position / 1024.0,
                 ds_dtype_name(n->kv_type), states, mib(n->batch), mib(n->process), mib(n->total),
                 stored);
    print_fit(r, changes, n_changes);
    print_times(r);
}

static ds_status write_json(const serve_run *r, const change *changes, uint32_t n_changes)
{
    const ds_serve_needs *n = &r->needs;
    char text[4096];
    size_t at = (size_t)snprintf(
        text, sizeof text,
        "{\n  \"ds_plan_serve\": 1,\n  \"ranks\": %lld,\n  \"parameters\": %llu,\n  \"dtype\": "
        "\"%s\",\n"
        "  \"kv_type\": \"%s\",\n"
        "  \"max_length\": %lld,\n  \"max_sequences\": %lld,\n  \"max_batch_tokens\": %lld,\n"
        "  \"kv_tokens\": %lld,\n  \"position_bytes\": %llu,\n  \"weights\": %llu,\n"
        "  \"stored\": %llu,\n  \"keys_values\": %llu,\n  \"states\": %llu,\n  \"batch\": %llu,\n  "
        "\"process\": %llu,\n "
        " \"need\": %llu,\n"
        "  \"available\": %llu,\n  \"fits\": %s,\n  \"would_fit\": [",
        (long long)r->o->ranks, (unsigned long long)n->parameters, ds_dtype_name(n->dtype),
        ds_dtype_name(n->kv_type), (long long)n->max_length, (long long)n->max_sequences,
        (long long)n->max_batch_tokens, (long long)n->kv_tokens, (unsigned long long)n->position,
        (unsigned long long)n->weights, (unsigned long long)n->stored,
        (unsigned long long)n->keys_values, (unsigned long long)n->states,
        (unsigned long long)n->batch, (unsigned long long)n->process, (unsigned long long)n->total,
        (unsigned long long)r->memory, fits(r, n->total) ? "true" : "false");
    for (uint32_t i = 0; i < n_changes; ++i) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s{\"flags\": \"%s\", \"need\": %llu}",
                               i > 0 ? ", " : "", changes[i].flags + 1,
                               (unsigned long long)changes[i].total);
    }
    at += (size_t)snprintf(text + at, sizeof text - at, "]");
    if (r->o->device != NULL) {
        at += (size_t)snprintf(text + at, sizeof text - at,
                               ",\n  \"seconds_one\": %.9g,\n  \"seconds_all\": %.9g,\n"
                               "  \"seconds_prompt\": %.9g",
                               r->times.one, r->times.all, r->times.prompt);
    }
    at += (size_t)snprintf(text + at, sizeof text - at, "\n}\n");
    return output_put(r->ctx, r->o->json, text, at);
}

static ds_status report(serve_run *r, int *code)
{
    change changes[MOST_CHANGES];
    uint32_t n_changes = 0;
    DS_TRY(open_model(r));
    DS_TRY(find_memory(r));
    DS_TRY(fill_params(r));
    DS_TRY(plan(r, &r->params, r->o->device != NULL ? &r->device : NULL, &r->needs));
    if (r->memory_of[0] == '\0') {
        r->memory = r->needs.available / (uint64_t)r->o->ranks;
        (void)snprintf(r->memory_of, sizeof r->memory_of,
                       r->o->ranks > 1 ? "of this machine for each" : "of this machine");
    }
    if (!fits(r, r->needs.total)) {
        DS_TRY(find_changes(r, changes, &n_changes));
        DS_TRY(find_offload(r, changes, &n_changes));
    }
    *code = fits(r, r->needs.total) ? FITS : TOO_LARGE;
    if (r->o->json != NULL) {
        return write_json(r, changes, n_changes);
    }
    print_text(r, changes, n_changes);
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, serve_options *o, int *code)
{
    const char *const inputs[] = {o->model_config, o->device};
    serve_run r = {.ctx = ctx, .o = o};
    DS_TRY(check_blocks(ctx, o));
    DS_TRY(find_model(ctx, o));
    DS_TRY(find_draft(ctx, o));
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
    serve_options o = {0};
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx *ctx = NULL;
    bool help = false;
    int code = USE;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return FAILED;
    }
    ds_status status = parse(ctx, argc, argv, &o, &help);
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
