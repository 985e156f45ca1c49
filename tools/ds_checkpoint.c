/* ds_checkpoint: lists, shows and verifies the checkpoints of a save folder. A thin main over
 * include/deepspeed/checkpoint.h. */
#include "common/args.h"

#include <deepspeed/checkpoint.h>
#include <deepspeed/context.h>
#include <string.h>

enum { EXIT_RIGHT = 0, EXIT_BROKEN = 1, EXIT_USAGE = 2, EXIT_FAILED = 3 };

typedef struct options {
    bool all;
    const char *state;
} options;

static const char about[] =
    "Lists, shows and verifies the checkpoints of a folder that training saved into.\n\n"
    "Commands:\n"
    "  list DIR           every checkpoint: step, bytes, tag, state\n"
    "  inspect DIR [TAG]  counters, states, shards and tensors of one\n"
    "  verify DIR [TAG]   reads all of one and compares every checksum\n\n"
    "Without TAG the checkpoint is the one that DIR/latest names.";

static const char after[] =
    "Examples:\n"
    "  ds_checkpoint list out/checkpoints\n"
    "  ds_checkpoint inspect out/checkpoints global_step200\n"
    "  ds_checkpoint inspect out/checkpoints --state config > ds.json\n"
    "  ds_checkpoint verify out/checkpoints --all\n\n"
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

/* "12.3 MB" */
static const char *bytes_text(uint64_t bytes, char *text, size_t n)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1000;
        ++unit;
    }
    (void)snprintf(text, n, unit == 0 ? "%.0f %s" : "%.3g %s", value, units[unit]);
    return text;
}

static int list(ds_ctx *ctx, const char *dir)
{
    ds_checkpoint_entry *entries = NULL;
    size_t n = 0;
    char text[32];
    const ds_status status = ds_checkpoint_list(ctx, dir, &entries, &n);
    if (status < 0) {
        return fail(ctx, status);
    }
    (void)printf("%10s %10s  %-7s %s\n", "step", "size", "state", "tag");
    for (size_t i = 0; i < n; ++i) {
        const ds_checkpoint_entry *e = &entries[i];
        if (e->whole) {
            (void)printf("%10llu %10s  %-7s %s%s\n", (unsigned long long)e->step,
                         bytes_text(e->bytes, text, sizeof text), "whole", e->tag,
                         e->latest ? "  (latest)" : "");
        } else {
            (void)printf("%10s %10s  %-7s %s%s\n", "?", "?", "broken", e->tag,
                         e->latest ? "  (latest)" : "");
        }
    }
    if (n == 0) {
        (void)printf("no checkpoints in %s\n", dir);
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
        (void)printf("  %-12s %-40s %s", t->kind, t->name,
                     ds_meta_text(t->meta, meta, sizeof meta));
        (void)printf(t->n_slices > 1 ? " in %u slices\n" : "\n", t->n_slices);
        kind_bytes += ds_meta_bytes(t->meta);
        if (next == NULL || strcmp(next->kind, t->kind) != 0) {
            (void)printf("  %-12s total %s\n", t->kind, bytes_text(kind_bytes, text, sizeof text));
            kind_bytes = 0;
        }
    }
}

static int print_state(const ds_checkpoint *c, const char *name)
{
    const char *json = ds_checkpoint_state(c, name);
    if (json == NULL) {
        (void)fprintf(stderr, "ds_checkpoint: %s has no state '%s'; it has:",
                      ds_checkpoint_get_info(c)->path, name);
        for (size_t i = 0; ds_checkpoint_state_name(c, i) != NULL; ++i) {
            (void)fprintf(stderr, " %s", ds_checkpoint_state_name(c, i));
        }
        (void)fprintf(stderr, "\n");
        return EXIT_USAGE;
    }
    (void)printf("%s\n", json);
    return EXIT_RIGHT;
}

static void print_all(const ds_checkpoint *c)
{
    const ds_checkpoint_info *info = ds_checkpoint_get_info(c);
    char text[32];
    (void)printf(
        "tag        %s\nfolder     %s\nstep       %llu\nsamples    %llu\ntokens     %llu\n",
        info->tag, info->path, (unsigned long long)info->step, (unsigned long long)info->samples,
        (unsigned long long)info->tokens);
    (void)printf("optimizer  %s\nsize       %s in %u shard%s\nstates\n", info->optimizer,
                 bytes_text(info->bytes, text, sizeof text), info->n_shards,
                 info->n_shards == 1 ? "" : "s");
    for (size_t i = 0; ds_checkpoint_state_name(c, i) != NULL; ++i) {
        const char *name = ds_checkpoint_state_name(c, i);
        const char *json = ds_checkpoint_state(c, name);
        (void)printf("  %-12s %.60s%s\n", name, json, strlen(json) > 60 ? "..." : "");
    }
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
        (void)printf("%s: right, %s\n", info->path, bytes_text(info->bytes, text, sizeof text));
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
    for (size_t i = 0; i < n; ++i) {
        const int one = verify(ctx, dir, entries[i].tag);
        rc = one > rc ? one : rc;
    }
    if (n == 0) {
        (void)fprintf(stderr, "ds_checkpoint: no checkpoints in %s\n", dir);
        rc = EXIT_BROKEN;
    }
    ds_checkpoint_list_free(entries, n);
    return rc;
}

static int usage(const char *what)
{
    (void)fprintf(stderr, "ds_checkpoint: %s; --help tells more\n", what);
    return EXIT_USAGE;
}

static int run(ds_ctx *ctx, const options *o, const dsi_arg_list *words)
{
    const char *command = words->n > 0 ? words->items[0] : "";
    const char *dir = words->n > 1 ? words->items[1] : NULL;
    const char *tag = words->n > 2 ? words->items[2] : NULL;
    const bool is_list = strcmp(command, "list") == 0;
    const bool is_inspect = strcmp(command, "inspect") == 0;
    const bool is_verify = strcmp(command, "verify") == 0;
    if (!is_list && !is_inspect && !is_verify) {
        return usage("expected a command: list, inspect or verify");
    }
    if (dir == NULL || words->n > (is_list ? 2u : 3u)) {
        return usage(is_list ? "expected: list DIR" : "expected a folder, and perhaps a tag");
    }
    if ((o->all && (!is_verify || tag != NULL)) || (o->state != NULL && !is_inspect)) {
        return usage("--all belongs to verify without a tag, --state to inspect");
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
    ds_ctx_destroy(&ctx);
    return rc;
}
