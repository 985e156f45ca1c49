/* SPDX-License-Identifier: Apache-2.0 */
/* ds_checkpoint: lists, shows, verifies and converts the checkpoints of a save folder. A thin main
 * over include/deepspeed/checkpoint.h. */
#include "base/plain.h"
#include "ckpt/ckpt_foreign.h"
#include "common/args.h"
#include "common/combine_adapters.h"
#include "common/deepspeed_folder.h"
#include "common/hub_flag.h"
#include "common/output.h"
#include "common/sentence_folder.h"
#include "common/size_text.h"
#include "io/file.h"
#include "nn/nn.h"

#include <deepspeed/adapter.h>
#include <deepspeed/checkpoint.h>
#include <deepspeed/context.h>
#include <deepspeed/unmerge.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { EXIT_RIGHT = 0, EXIT_BROKEN = 1, EXIT_USAGE = 2, EXIT_FAILED = 3 };

typedef struct options {
    bool all, overwrite, reversible;
    const char *state, *dtype, *max_shard_size, *tokenizer, *tokenizer_revision;
    bool given_dtype, given_size, exclude_frozen;
    deepspeed_flags deepspeed;
    combine_flags combine;
} options;

static const char about[] =
    "Lists, shows, verifies and converts the checkpoints of a folder that training saved into, "
    "whatever the number of ranks that saved them.\n\n"
    "Commands:\n"
    "  list DIR                   every checkpoint: step, bytes, tag, state\n"
    "  inspect DIR [TAG]          counters, states, shards and tensors of one\n"
    "  verify DIR [TAG]           reads all of one and compares every checksum\n"
    "  export DIR OUT [TAG]       writes a Hugging Face model folder: config.json, weights\n"
    "  consolidate DIR OUT [TAG]  writes one of many shards as one of one shard into the save "
    "folder OUT\n"
    "  deepspeed DIR OUT [TAG]    writes one as a ZeRO folder of DeepSpeed for Python\n"
    "  universal DIR OUT [TAG]    writes one as a universal folder of it\n"
    "  merge MODEL ADAPTER… OUT   writes the model folder that adapters make of MODEL (PEFT's\n"
    "                             folders, or ds_train --lora's), one after the other\n"
    "  combine OUT ADAPTER…       writes one adapter of several, as PEFT's add_weighted_adapter "
    "does\n"
    "  unmerge MERGED OUT         writes the model that merge --reversible was given, its weights "
    "byte\n"
    "                             for byte\n\n"
    "Without TAG the checkpoint is the one that DIR/latest names. DIR may also be a save folder of "
    "DeepSpeed for Python (ZeRO stages 1 to 3, also of ranks that share layers, of pipelines and "
    "with experts, bf16 optimizer, universal; names of a module of your own are mapped by a file "
    "parameter_names.txt in it, a line 'OWN NAME' each, {n} a number and * the rest): inspect, "
    "verify, "
    "export, "
    "consolidate, deepspeed and universal read it; consolidate makes a checkpoint of ours of it, "
    "deepspeed one for another stage and other ranks. Or a folder of torch.distributed.checkpoint "
    "(.distcp): inspect, verify and consolidate read it.";

static const char after[] =
    "Examples:\n"
    "  ds_checkpoint list out/checkpoints\n"
    "  ds_checkpoint inspect out/checkpoints global_step200\n"
    "  ds_checkpoint inspect out/checkpoints --state config > ds.json\n"
    "  ds_checkpoint verify out/checkpoints --all\n"
    "  ds_checkpoint export out/checkpoints model --dtype bf16 --tokenizer gpt2\n"
    "  ds_checkpoint deepspeed out/checkpoints ds --zero_stage 2 --ranks 8\n"
    "  ds_checkpoint deepspeed out ds --zero_stage 1 --ranks 4 --like first_save\n"
    "  ds_checkpoint merge Qwen/Qwen2.5-0.5B tuned merged\n"
    "  ds_checkpoint merge --weights 0.7,0.3 Qwen/Qwen2.5-0.5B style facts merged\n\n"
    "Exit codes: 0 right, 1 a checkpoint is broken or missing, 2 wrong usage, 3 a folder or file\n"
    "cannot be read or memory ran out.";

static int fail(ds_ctx *ctx, ds_status status)
{
    (void)fprintf(stderr, "ds_checkpoint: %s\n", ds_ctx_error(ctx));
    switch (status) {
    case DS_ERR_ARG:
        return EXIT_USAGE;
    case DS_ERR_IO:
    case DS_ERR_NOMEM:
        return EXIT_FAILED;
    default:
        return EXIT_BROKEN;
    }
}

/* A name of a file or folder, as a terminal may show it; until the next call but three. */
static const char *shown(const char *name)
{
    enum { SLOTS = 4, NAME_BYTES = 1024 };
    static char texts[SLOTS][NAME_BYTES];
    static unsigned turn;
    turn = (turn + 1) % SLOTS;
    return dsi_plain_name(name, texts[turn], NAME_BYTES);
}

static int list(ds_ctx *ctx, const char *dir)
{
    ds_checkpoint_entry *entries = NULL;
    ds_checkpoint *foreign = NULL;
    size_t n = 0;
    char text[32];
    const ds_status status = ds_checkpoint_list(ctx, dir, &entries, &n);
    if (status < 0) {
        return fail(ctx, status);
    }
    const ds_status opened = n == 0 ? ds_checkpoint_open(ctx, dir, NULL, &foreign) : DS_OK;
    if (opened < 0 && (opened != DS_ERR_NOT_FOUND || dsi_ckpt_foreign(ctx, dir, NULL) < 0)) {
        ds_checkpoint_list_free(entries, n); /* one of DeepSpeed for Python, damaged or not read */
        return fail(ctx, opened);
    }
    (void)printf("%10s %10s  %-7s %s\n", "step", "size", "state", "tag");
    if (foreign != NULL) { /* the one that `latest` names, or the folder itself */
        const ds_checkpoint_info *info = ds_checkpoint_get_info(foreign);
        const char *origin = ds_checkpoint_state(foreign, "origin");
        const bool of_torch = origin != NULL && strstr(origin, "torch.distributed") != NULL;
        (void)printf("%10llu %10s  %-7s %s  %s\n", (unsigned long long)info->step,
                     size_text(info->bytes, text, sizeof text), "whole", shown(info->tag),
                     of_torch ? "of torch.distributed.checkpoint"
                              : "(latest) of DeepSpeed for Python");
        ds_checkpoint_close(&foreign);
        ds_checkpoint_list_free(entries, n);
        return EXIT_RIGHT;
    }
    for (size_t i = 0; i < n; ++i) {
        const ds_checkpoint_entry *e = &entries[i];
        if (e->whole) {
            (void)printf("%10llu %10s  %-7s %s%s\n", (unsigned long long)e->step,
                         size_text(e->bytes, text, sizeof text), "whole", shown(e->tag),
                         e->latest ? "  (latest)" : "");
        } else {
            (void)printf("%10s %10s  %-7s %s%s\n", "?", "?",
                         e->n_elsewhere > 0 ? "partly" : "broken", shown(e->tag),
                         e->latest ? "  (latest)" : "");
        }
    }
    if (n == 0) {
        (void)printf("no checkpoints in %s\n", shown(dir));
    }
    ds_checkpoint_list_free(entries, n);
    return EXIT_RIGHT;
}

static void print_tensors(const ds_checkpoint *c)
{
    char meta[160];
    char text[32];
    uint64_t kind_bytes = 0;
    const size_t n = ds_checkpoint_count(c);
    for (size_t i = 0; i < n; ++i) {
        const ds_checkpoint_tensor *t = ds_checkpoint_at(c, i);
        const ds_checkpoint_tensor *next = ds_checkpoint_at(c, i + 1);
        (void)printf("  %-12s %-40s %s", shown(t->kind), shown(t->name),
                     ds_meta_text(t->meta, meta, sizeof meta));
        (void)printf(t->n_slices > 1 ? " in %u slices\n" : "\n", t->n_slices);
        kind_bytes += ds_meta_bytes(t->meta);
        if (next == NULL || strcmp(next->kind, t->kind) != 0) {
            (void)printf("  %-12s total %s\n", shown(t->kind),
                         size_text(kind_bytes, text, sizeof text));
            kind_bytes = 0;
        }
    }
}

static int print_state(const ds_checkpoint *c, const char *name)
{
    const char *json = ds_checkpoint_state(c, name);
    if (json == NULL) {
        (void)fprintf(stderr, "ds_checkpoint: %s has no state '%s'; it has:",
                      shown(ds_checkpoint_get_info(c)->path), shown(name));
        for (size_t i = 0; ds_checkpoint_state_name(c, i) != NULL; ++i) {
            (void)fprintf(stderr, " %s", shown(ds_checkpoint_state_name(c, i)));
        }
        (void)fprintf(stderr, "\n");
        return EXIT_USAGE;
    }
    (void)printf("%s\n", json);
    return EXIT_RIGHT;
}

static void print_shards(const ds_checkpoint *c)
{
    ds_checkpoint_shard shard;
    char text[32];
    for (size_t i = 0; ds_checkpoint_get_shard(c, i, &shard); ++i) {
        (void)printf("  %-40s %8s%s%s\n", shown(shard.file),
                     size_text(shard.bytes, text, sizeof text), shard.host != NULL ? "  host " : "",
                     shard.host != NULL ? shown(shard.host) : "");
    }
}

static void print_all(const ds_checkpoint *c)
{
    const ds_checkpoint_info *info = ds_checkpoint_get_info(c);
    char text[32];
    (void)printf(
        "tag        %s\nfolder     %s\nstep       %llu\nsamples    %llu\ntokens     %llu\n",
        shown(info->tag), shown(info->path), (unsigned long long)info->step,
        (unsigned long long)info->samples, (unsigned long long)info->tokens);
    (void)printf("optimizer  %s\nsize       %s in %u shard%s\nstates\n", shown(info->optimizer),
                 size_text(info->bytes, text, sizeof text), info->n_shards,
                 info->n_shards == 1 ? "" : "s");
    for (size_t i = 0; ds_checkpoint_state_name(c, i) != NULL; ++i) {
        const char *name = ds_checkpoint_state_name(c, i);
        const char *json = ds_checkpoint_state(c, name);
        (void)printf("  %-12s %.60s%s\n", shown(name), shown(json), strlen(json) > 60 ? "..." : "");
    }
    print_shards(c);
    (void)printf("tensors    %zu\n", ds_checkpoint_count(c));
    print_tensors(c);
}

static int inspect(ds_ctx *ctx, const options *o, const char *dir, const char *tag)
{
    ds_checkpoint *c = NULL;
    const ds_status status = ds_checkpoint_open(ctx, dir, tag, &c);
    if (status < 0) {
        return fail(ctx, status);
    }
    int rc = EXIT_RIGHT;
    if (o->state != NULL) {
        rc = print_state(c, o->state);
    } else {
        print_all(c);
    }
    ds_checkpoint_close(&c);
    return rc;
}

static int verify(ds_ctx *ctx, const char *dir, const char *tag)
{
    ds_checkpoint *c = NULL;
    char text[32];
    ds_status status = ds_checkpoint_open(ctx, dir, tag, &c);
    if (status == DS_OK) {
        status = ds_checkpoint_verify(c);
    }
    if (status == DS_OK) {
        const ds_checkpoint_info *info = ds_checkpoint_get_info(c);
        (void)printf("%s: right, %s\n", shown(info->path),
                     size_text(info->bytes, text, sizeof text));
    }
    ds_checkpoint_close(&c);
    return status < 0 ? fail(ctx, status) : EXIT_RIGHT;
}

static int verify_all(ds_ctx *ctx, const char *dir)
{
    ds_checkpoint_entry *entries = NULL;
    size_t n = 0;
    int rc = EXIT_RIGHT;
    const ds_status status = ds_checkpoint_list(ctx, dir, &entries, &n);
    if (status < 0) {
        return fail(ctx, status);
    }
    if (n == 0 && dsi_ckpt_foreign(ctx, dir, NULL) < 0) {
        ds_checkpoint_list_free(entries, n);
        return fail(ctx, DS_ERR_UNSUPPORTED);
    }
    for (size_t i = 0; i < n; ++i) {
        const int one = verify(ctx, dir, entries[i].tag);
        rc = one > rc ? one : rc;
    }
    if (n == 0) {
        (void)fprintf(stderr, "ds_checkpoint: no checkpoints in %s\n", shown(dir));
        rc = EXIT_BROKEN;
    }
    ds_checkpoint_list_free(entries, n);
    return rc;
}

static ds_status dtype_of(ds_ctx *ctx, const char *name, ds_dtype *dtype_out)
{
    const ds_dtype dtype = ds_dtype_from_name(name);
    if (dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16) {
        *dtype_out = dtype;
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_ARG, "--dtype: expected fp32, bf16 or fp16, found '%s'", name);
}

typedef struct dense_source {
    ds_ctx *ctx;
    ds_checkpoint *checkpoint;
} dense_source;

/* A sentence_read_fn; user: a dense_source. */
static ds_status read_dense(void *user, uint32_t which, const char *name, float *data, size_t n)
{
    const dense_source *from = user;
    ds_checkpoint *c = from->checkpoint;
    char whole[64];
    (void)snprintf(whole, sizeof whole, DSI_DENSE_SCOPE "%u.%s", which, name);
    const ds_checkpoint_tensor *t = ds_checkpoint_find(c, "master", whole);
    t = t != NULL ? t : ds_checkpoint_find(c, "param", whole);
    const ds_extent all = ds_extent_flat(0, (int64_t)n);
    if (t == NULL || ds_shape_count(t->meta.shape) != (int64_t)n) {
        return ds_fail(from->ctx, DS_ERR_NOT_FOUND,
                       "%s: the tensor %s of a module Dense is missing, or of another size",
                       ds_checkpoint_get_info(c)->path, whole);
    }
    return ds_checkpoint_read(c, t, &all, DS_DTYPE_F32, data);
}

static int export(ds_ctx *ctx, const options *o, const char *dir, const char *out, const char *tag)
{
    ds_checkpoint *c = NULL;
    ds_checkpoint_export_info info;
    ds_checkpoint_export_params params = {.folder = out,
                                          .model_folder = true,
                                          .copy_from = o->tokenizer,
                                          .exclude_frozen = o->exclude_frozen};
    char *found = NULL;
    ds_status status = hub_flag_find(ctx, "tokenizer", &params.copy_from, o->tokenizer_revision,
                                     DS_HUB_TOKENIZER, &found);
    if (status == DS_OK) {
        status = hub_flag_spare(ctx, found, "output", out);
    }
    if (status == DS_OK) {
        status = dtype_of(ctx, o->dtype, &params.dtype);
    }
    if (status == DS_OK) {
        status = size_parse(ctx, "max_shard_size", o->max_shard_size, &params.max_shard_bytes);
    }
    if (status == DS_OK) {
        status = ds_checkpoint_open(ctx, dir, tag, &c);
    }
    if (status == DS_OK) {
        status = output_folder_free(ctx, out, o->overwrite);
    }
    if (status == DS_OK) {
        status = ds_checkpoint_export(c, &params, &info);
    }
    const char *embeddings = status == DS_OK ? ds_checkpoint_state(c, "embeddings") : NULL;
    if (embeddings != NULL) {
        dense_source from = {ctx, c};
        status = sentence_folder_write(ctx, out, embeddings, read_dense, &from);
    }
    if (status == DS_OK) {
        (void)printf("%s: %llu tensors, %llu elements as %s\n", shown(out),
                     (unsigned long long)(info.n_trained + (o->exclude_frozen ? 0 : info.n_frozen)),
                     (unsigned long long)(info.trained_elements +
                                          (o->exclude_frozen ? 0 : info.frozen_elements)),
                     o->dtype);
    }
    free(found);
    ds_checkpoint_close(&c);
    return status < 0 ? fail(ctx, status) : EXIT_RIGHT;
}

/* Whether OUT has a checkpoint of this name. */
static ds_status check_tag(ds_ctx *ctx, const options *o, const char *out, const char *tag)
{
    struct stat st;
    char *path = dsi_path_join(out, tag);
    const bool there = path == NULL || stat(path, &st) == 0;
    free(path);
    return there && !o->overwrite
               ? ds_fail(ctx, DS_ERR_ARG,
                         "%s holds %s already: --overwrite replaces it; or give another folder",
                         out, tag)
               : DS_OK;
}

static int consolidate(ds_ctx *ctx, const options *o, const char *dir, const char *out,
                       const char *tag)
{
    ds_checkpoint *c = NULL;
    ds_status status = ds_checkpoint_open(ctx, dir, tag, &c);
    if (status == DS_OK) {
        status = check_tag(ctx, o, out, ds_checkpoint_get_info(c)->tag);
    }
    if (status == DS_OK) {
        status = ds_checkpoint_consolidate(c, out);
    }
    if (status == DS_OK) {
        (void)printf("%s/%s: %u shards are one\n", shown(out),
                     shown(ds_checkpoint_get_info(c)->tag), ds_checkpoint_get_info(c)->n_shards);
    }
    ds_checkpoint_close(&c);
    return status < 0 ? fail(ctx, status) : EXIT_RIGHT;
}

static int write_deepspeed(ds_ctx *ctx, const options *o, const dsi_arg_list *words)
{
    const bool universal = strcmp(words->items[0], "universal") == 0;
    const char *out = words->items[2];
    char tag[300];
    ds_checkpoint *c = NULL;
    ds_status status =
        ds_checkpoint_open(ctx, words->items[1], words->n > 3 ? words->items[3] : NULL, &c);
    if (status == DS_OK) {
        (void)snprintf(tag, sizeof tag, "%s%s", ds_checkpoint_get_info(c)->tag,
                       universal ? "_universal" : "");
        status = check_tag(ctx, o, out, tag);
    }
    if (status == DS_OK) {
        status = deepspeed_folder_write(ctx, c, &o->deepspeed, universal, out);
    }
    if (status == DS_OK && universal) {
        (void)printf("%s/%s: for DeepSpeed with \"checkpoint\": {\"load_universal\": true}\n",
                     shown(out), shown(tag));
    } else if (status == DS_OK) {
        (void)printf("%s/%s: for DeepSpeed at ZeRO stage %lld on %lld rank%s\n", shown(out),
                     shown(tag), (long long)o->deepspeed.zero_stage, (long long)o->deepspeed.ranks,
                     o->deepspeed.ranks == 1 ? "" : "s");
    }
    ds_checkpoint_close(&c);
    return status < 0 ? fail(ctx, status) : EXIT_RIGHT;
}

static int usage(const char *what)
{
    (void)fprintf(stderr, "ds_checkpoint: %s; --help says more\n", what);
    return EXIT_USAGE;
}

static ds_status merge_opened(ds_ctx *ctx, const options *o, ds_adapter_merge_params *params,
                              const ds_adapter *adapter)
{
    DS_TRY(o->given_dtype ? dtype_of(ctx, o->dtype, &params->dtype) : DS_OK);
    DS_TRY(size_parse(ctx, "max_shard_size", o->max_shard_size, &params->max_shard_bytes));
    DS_TRY(output_folder_free(ctx, params->folder, o->overwrite));
    DS_TRY(ds_adapter_merge(ctx, adapter, params));
    return o->reversible ? ds_unmerge_keep(ctx, params->model_folder, params->folder) : DS_OK;
}

/* unmerge: MERGED OUT. */
static int unmerge(ds_ctx *ctx, const options *o, const dsi_arg_list *words)
{
    if (words->n != 3) {
        return usage("expected: unmerge MERGED OUT");
    }
    if (o->given_dtype || o->given_size || o->tokenizer != NULL || o->exclude_frozen) {
        return usage("unmerge gives what was merged: --dtype, --max_shard_size, --tokenizer and "
                     "--exclude_frozen_parameters belong to export");
    }
    ds_status status = output_folder_free(ctx, words->items[2], o->overwrite);
    status = status < 0 ? status : ds_unmerge(ctx, words->items[1], words->items[2]);
    if (status >= 0) {
        (void)printf("%s: the model of %s\n", shown(words->items[2]), shown(words->items[1]));
    }
    return status < 0 ? fail(ctx, status) : EXIT_RIGHT;
}

static ds_status print_merged(const ds_adapter_merge_params *p, const merge_list *list)
{
    for (size_t i = 0; i < list->n; ++i) {
        char *line = NULL;
        DS_TRY(ds_adapter_print(list->items[i], &line));
        if (i == 0) {
            (void)printf("%s: %s with %s\n", shown(p->folder), shown(p->model_folder), line);
        } else {
            (void)printf("  and with %s\n", line);
        }
        free(line);
    }
    return DS_OK;
}

/* merge: MODEL ADAPTER… OUT. */
static int merge(ds_ctx *ctx, const options *o, const dsi_arg_list *words)
{
    const char *model = words->n > 1 ? words->items[1] : NULL;
    merge_list list = {0};
    char *found = NULL;
    if (words->n < 4) {
        return usage("expected: merge MODEL ADAPTER… OUT");
    }
    if (o->tokenizer != NULL || o->exclude_frozen) {
        return usage("--tokenizer and --exclude_frozen_parameters belong to export");
    }
    const char *out = words->items[words->n - 1];
    ds_status status = hub_flag_find(ctx, "model", &model, NULL, DS_HUB_MODEL, &found);
    status = status < 0 ? status : hub_flag_spare(ctx, found, "output", out);
    status = status < 0 ? status
                        : merge_list_open(ctx, (const char *const *)words->items + 2, words->n - 3,
                                          &o->combine.weights, &list);
    ds_adapter_merge_params params = {.model_folder = model,
                                      .folder = out,
                                      .others = (const ds_adapter *const *)list.items + 1,
                                      .n_others = (uint32_t)words->n - 4,
                                      .weights = list.weights};
    status = status < 0 ? status : merge_opened(ctx, o, &params, list.items[0]);
    status = status < 0 ? status : print_merged(&params, &list);
    merge_list_close(&list);
    free(found);
    return status < 0 ? fail(ctx, status) : EXIT_RIGHT;
}

/* export, consolidate, deepspeed and universal: DIR OUT [TAG]. */
static int run_copy(ds_ctx *ctx, const options *o, const dsi_arg_list *words)
{
    const bool is_export = strcmp(words->items[0], "export") == 0;
    const char *tag = words->n > 3 ? words->items[3] : NULL;
    if (words->n < 3 || words->n > 4) {
        return usage("expected a folder, an output folder, and perhaps a tag");
    }
    if (!is_export &&
        (o->given_dtype || o->given_size || o->tokenizer != NULL || o->exclude_frozen)) {
        return usage("--dtype, --max_shard_size, --tokenizer and --exclude_frozen_parameters "
                     "belong to export");
    }
    if (!is_export && strcmp(words->items[0], "consolidate") != 0) {
        return write_deepspeed(ctx, o, words);
    }
    if (deepspeed_flags_given(&o->deepspeed)) {
        return usage("--zero_stage, --ranks, --like, --parameter_order, --parameter_groups and "
                     "--sub_group_size belong to deepspeed and universal");
    }
    return is_export ? export(ctx, o, words->items[1], words->items[2], tag)
                     : consolidate(ctx, o, words->items[1], words->items[2], tag);
}

/* combine: OUT ADAPTER…. */
static int combine(ds_ctx *ctx, const options *o, const dsi_arg_list *words)
{
    if (words->n < 3) {
        return usage("expected: combine OUT ADAPTER…");
    }
    if (o->given_dtype || o->given_size || o->tokenizer != NULL || o->exclude_frozen ||
        o->reversible || deepspeed_flags_given(&o->deepspeed)) {
        return usage("combine takes --weights, --combination, --svd_rank, --density, "
                     "--majority_sign_method, --seed and --overwrite");
    }
    ds_status status = output_folder_free(ctx, words->items[1], o->overwrite);
    status = status < 0 ? status : combine_adapters(ctx, &o->combine, words);
    return status < 0 ? fail(ctx, status) : EXIT_RIGHT;
}

static int run(ds_ctx *ctx, const options *o, const dsi_arg_list *words)
{
    const char *command = words->n > 0 ? words->items[0] : "";
    const char *dir = words->n > 1 ? words->items[1] : NULL;
    const char *tag = words->n > 2 ? words->items[2] : NULL;
    const bool is_list = strcmp(command, "list") == 0;
    const bool is_inspect = strcmp(command, "inspect") == 0;
    const bool is_verify = strcmp(command, "verify") == 0;
    const bool is_copy = strcmp(command, "export") == 0 || strcmp(command, "consolidate") == 0 ||
                         strcmp(command, "deepspeed") == 0 || strcmp(command, "universal") == 0;
    const bool is_merge = strcmp(command, "merge") == 0;
    const bool is_unmerge = strcmp(command, "unmerge") == 0;
    const bool is_combine = strcmp(command, "combine") == 0;
    if (!is_list && !is_inspect && !is_verify && !is_copy && !is_merge && !is_unmerge &&
        !is_combine) {
        return usage("expected a command: list, inspect, verify, export, consolidate, deepspeed, "
                     "universal, merge, combine or unmerge");
    }
    if (is_combine) {
        return combine(ctx, o, words);
    }
    if (combine_flags_given(&o->combine, !is_merge)) {
        return usage(is_merge ? "--combination, --svd_rank, --density, --majority_sign_method and "
                                "--seed belong to combine"
                              : "--weights, --combination, --svd_rank, --density, "
                                "--majority_sign_method and --seed belong to combine, --weights to "
                                "merge, too");
    }
    if (o->reversible && !is_merge) {
        return usage("--reversible belongs to merge");
    }
    if ((o->all && (!is_verify || tag != NULL)) || (o->state != NULL && !is_inspect)) {
        return usage("--all belongs to verify without a tag, --state to inspect");
    }
    if (is_copy) {
        return run_copy(ctx, o, words);
    }
    if (deepspeed_flags_given(&o->deepspeed)) {
        return usage("--zero_stage, --ranks, --like, --parameter_order, --parameter_groups and "
                     "--sub_group_size belong to deepspeed and universal");
    }
    if (is_merge || is_unmerge) {
        return is_merge ? merge(ctx, o, words) : unmerge(ctx, o, words);
    }
    if (dir == NULL || words->n > (is_list ? 2u : 3u)) {
        return usage(is_list ? "expected: list DIR" : "expected a folder, and perhaps a tag");
    }
    if (o->given_dtype || o->given_size || o->tokenizer != NULL || o->exclude_frozen) {
        return usage("--dtype, --max_shard_size, --tokenizer and --exclude_frozen_parameters "
                     "belong to export");
    }
    if (is_list) {
        return list(ctx, dir);
    }
    if (is_inspect) {
        return inspect(ctx, o, dir, tag);
    }
    return o->all ? verify_all(ctx, dir) : verify(ctx, dir, tag);
}

int main(int argc, char **argv)
{
    output_guard("ds_checkpoint");
    options o = {0};
    const dsi_arg rows[] = {
        {.name = "all",
         .type = DSI_ARG_SWITCH,
         .out = &o.all,
         .def = "false",
         .doc = "verify: every checkpoint of the folder."},
        {.name = "state",
         .type = DSI_ARG_TEXT,
         .out = &o.state,
         .value = "NAME",
         .doc = "inspect: only the JSON of this state, such as config or data."},
        {.name = "dtype",
         .type = DSI_ARG_TEXT,
         .out = &o.dtype,
         .given_out = &o.given_dtype,
         .value = "DTYPE",
         .def = "fp32",
         .doc = "export: fp32, bf16 or fp16; merge: likewise, default: as MODEL is stored."},
        {.name = "max_shard_size",
         .type = DSI_ARG_TEXT,
         .out = &o.max_shard_size,
         .given_out = &o.given_size,
         .value = "SIZE",
         .def = "5GB",
         .doc = "export, merge: a weight file above this size is cut into several; 0: never."},
        {.name = "tokenizer",
         .type = DSI_ARG_TEXT,
         .out = &o.tokenizer,
         .value = "DIR|ORG/NAME",
         .doc = "export: copy the tokenizer files of this model folder, too, or of this model in "
                "the Hugging Face cache."},
        {.name = "tokenizer_revision",
         .type = DSI_ARG_TEXT,
         .out = &o.tokenizer_revision,
         .value = "REV",
         .doc = "export: branch, tag or commit of it; default: main."},
        {.name = "exclude_frozen_parameters",
         .type = DSI_ARG_SWITCH,
         .out = &o.exclude_frozen,
         .def = "false",
         .doc = "export: without parameters that were not trained."},
        DEEPSPEED_FLAG_ROWS(&o.deepspeed),
        {.name = "reversible",
         .type = DSI_ARG_SWITCH,
         .out = &o.reversible,
         .def = "false",
         .doc =
             "merge: keep in OUT what its weights differ by from MODEL's, as large as those that "
             "change, so that unmerge can write MODEL again."},
        COMBINE_FLAG_ROWS(&o.combine),
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o.overwrite,
         .doc = "export, merge, combine, unmerge: into a folder that holds a model's files; "
                "consolidate, "
                "deepspeed, universal: over a checkpoint of the same name."},
    };
    const dsi_args_spec spec = {.usage = "ds_checkpoint COMMAND DIR [TAG] [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILED;
    }
    dsi_args args;
    int rc = EXIT_RIGHT;
    const ds_status status = dsi_args_parse(ctx, &spec, argc, argv, &args);
    if (status < 0) {
        rc = fail(ctx, status);
    } else {
        if (args.help) {
            dsi_args_help(&spec, stdout);
        } else {
            rc = run(ctx, &o, &args.words);
        }
        dsi_args_free(&args);
    }
    dsi_arg_list_free(&o.combine.weights);
    ds_ctx_destroy(&ctx);
    return rc;
}
