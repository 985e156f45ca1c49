/* SPDX-License-Identifier: Apache-2.0 */
/* ds_accel_test: whether an accelerator does what the library asks of one. The checks are in
 * tools/common/accel_conform*.c. */
#include "common/accel_conform.h"
#include "common/args.h"
#include "common/output.h"

#include <deepspeed/context.h>

enum { EXIT_WRONG = 1, EXIT_USE = 2 };

static const char about[] =
    "Checks an accelerator: its memory, streams, events and graphs against plain C with random "
    "work, and "
    "small models that it trains and generates with against the processor's numbers.";

static const char after[] =
    "NAME is cpu, null, sim, cuda, or the path of a shared object with a slash in it; options "
    "stand "
    "behind a\ncolon. What an accelerator leaves out (streams; graphs; arithmetic, for one that "
    "counts alone) is\nnot checked, and said.\n\n"
    "Examples:\n"
    "  ds_accel_test sim:seed=7\n"
    "  ds_accel_test ./libmyaccel.so --rounds 50\n\n"
    "Exit codes: 0 all checks passed, 1 one failed or the accelerator cannot be opened, 2 wrong "
    "use.";

static ds_status open_device(accel_conform *c)
{
    return c->accel->open != NULL ? c->accel->open(c->ctx, c->choice->options, &c->device) : DS_OK;
}

static void close_device(accel_conform *c)
{
    if (c->accel->close != NULL) {
        c->accel->close(&c->device);
    }
}

static const char *reason_not(const accel_conform *c, const accel_check *check)
{
    return check->streams && c->accel->streams == NULL ? "it has no streams"
           : check->calls && c->accel->streams->call == NULL
               ? "its streams make no calls of the host"
           : check->graphs && c->accel->graphs == NULL ? "it captures no graphs"
           : check->disks && c->accel->disks == NULL   ? "the host moves what is on disk"
           : check->computes && c->accel->counts_only  ? "it computes nothing"
                                                       : NULL;
}

/* All checks, behind a failure too: each on a device of its own. */
static int run_all(accel_conform *c)
{
    uint32_t n_failed = 0;
    (void)printf("accelerator %s: %s\n", c->accel->name, c->accel->doc);
    for (uint32_t i = 0; accel_conform_at(i) != NULL; ++i) {
        const accel_check *check = accel_conform_at(i);
        const char *reason = reason_not(c, check);
        if (reason != NULL) {
            (void)printf("%-58s not checked: %s\n", check->name, reason);
            continue;
        }
        ds_status status = open_device(c);
        if (status >= 0) {
            status = check->run(c);
            close_device(c);
        }
        if (check->disks && status == DS_ERR_UNSUPPORTED) {
            (void)printf("%-58s not checked: %s\n", check->name, ds_ctx_error(c->ctx));
            continue;
        }
        (void)printf("%-58s %s%s\n", check->name, status < 0 ? "FAILED: " : "passed",
                     status < 0 ? ds_ctx_error(c->ctx) : "");
        n_failed += status < 0 ? 1 : 0;
    }
    return n_failed > 0 ? EXIT_WRONG : 0;
}

static int run(ds_ctx *ctx, const char *name, int64_t seed, int64_t rounds)
{
    dsi_accel_choice choice;
    if (dsi_accel_choose(ctx, name, &choice) < 0) {
        (void)fprintf(stderr, "ds_accel_test: %s\n", ds_ctx_error(ctx));
        return EXIT_WRONG;
    }
    accel_conform c = {.ctx = ctx,
                       .accel = dsi_accel_chosen(&choice),
                       .choice = &choice,
                       .seed = (uint64_t)seed,
                       .rounds = (uint32_t)rounds};
    return run_all(&c);
}

int main(int argc, char **argv)
{
    output_guard("ds_accel_test");
    int64_t seed = 0;
    int64_t rounds = 0;
    const dsi_arg rows[] = {
        {.name = "seed",
         .type = DSI_ARG_INT,
         .out = &seed,
         .value = "N",
         .def = "1",
         .max = 9e15,
         .doc = "Of the work that is drawn."},
        {.name = "rounds",
         .type = DSI_ARG_INT,
         .out = &rounds,
         .value = "N",
         .def = "4",
         .min = 1,
         .max = 1e6,
         .doc = "How much of it: rounds of 300 operations."},
    };
    const dsi_args_spec spec = {.usage = "ds_accel_test NAME[:OPTIONS] [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 2};
    ds_ctx *ctx = NULL;
    dsi_args args;
    if (ds_ctx_create(&params, &ctx) < 0 || dsi_args_parse(ctx, &spec, argc, argv, &args) < 0) {
        (void)fprintf(stderr, "ds_accel_test: %s\n", ds_ctx_error(ctx));
        ds_ctx_destroy(&ctx);
        return EXIT_USE;
    }
    int code = 0;
    if (args.help) {
        dsi_args_help(&spec, stdout);
    } else if (args.words.n != 1) {
        (void)fprintf(stderr,
                      "ds_accel_test: expected the name of one accelerator, found %zu "
                      "words; --help says more\n",
                      args.words.n);
        code = EXIT_USE;
    } else {
        code = run(ctx, args.words.items[0], seed, rounds);
    }
    dsi_args_free(&args);
    ds_ctx_destroy(&ctx);
    return code;
}
