/* SPDX-License-Identifier: Apache-2.0 */
/* Which flags of ds_serve go together: a flag is in force, or the error names it. Called by
 * serve_options_parse; what needs a model or a file to be known is checked where that is read. See
 * serve_options.h. */
#include "serve_options.h"

#include "common/args_find.h"

#include <string.h>

static bool is_one_of(const char *const *names, const char *name)
{
    while (*names != NULL && strcmp(*names, name) != 0) {
        ++names;
    }
    return *names != NULL;
}

/* The first of these flags that the command line has. NULL: none. */
static const char *first_given(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                               const char *const *names)
{
    for (int i = 1; i < argc; ++i) {
        const dsi_arg *row = NULL;
        bool alone = false;
        if (strncmp(argv[i], "--", 2) == 0 &&
            dsi_args_find(ctx, spec, argv[i] + 2, strcspn(argv[i] + 2, "="), &row, &alone) >= 0 &&
            is_one_of(names, row->name)) {
            return row->name;
        }
    }
    return NULL;
}

/* Of servers of a model that have these flags. */
static ds_status check_model(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                             const serve_options *o)
{
    static const char *const of_vectors[] = {"pooling", "normalize", NULL};
    static const char *const of_rank[] = {"max_lora_rank", NULL};
    const int64_t named = (int64_t)o->lora.n;
    const char *vectors = first_given(ctx, spec, argc, argv, of_vectors);
    if (o->max_loras > 0 && o->max_loras < named) {
        return ds_fail(ctx, DS_ERR_ARG, "--max_loras %lld, but --lora names %lld",
                       (long long)o->max_loras, (long long)named);
    }
    if (o->adapter != NULL && (o->max_loras > 0 || named > 0)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--adapter is in all texts, and --lora and --max_loras would be added to "
                       "it: merge it into the weights first (ds_checkpoint)");
    }
    if (o->max_loras == 0 && named == 0 && o->lora_updates) {
        return ds_fail(ctx, DS_ERR_ARG, "--lora_updates needs slots: --max_loras N");
    }
    if (o->max_loras == 0 && named == 0 && first_given(ctx, spec, argc, argv, of_rank) != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--max_lora_rank goes with --lora or --max_loras");
    }
    return o->no_embeddings && vectors != NULL
               ? ds_fail(ctx, DS_ERR_ARG, "--%s has no effect beside --no_embeddings", vectors)
               : DS_OK;
}

/* Of a server of a model: what only a front heeds. */
static ds_status refuse_alone(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv)
{
    static const char *const of_front[] = {"include",
                                           "exclude",
                                           "ssh_port",
                                           "replica_port",
                                           "upstream_key_file",
                                           "probe_seconds",
                                           "probe_timeout",
                                           "reload_timeout",
                                           "replica_restarts",
                                           "replica_tls",
                                           "upstream_cacert",
                                           "upstream_insecure",
                                           NULL};
    const char *flag = first_given(ctx, spec, argc, argv, of_front);
    return flag == NULL
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG,
                         "--%s goes with --hostfile, --replicas, --replica or --upstream", flag);
}

/* Of a front: where its replicas are. */
static ds_status check_places(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                              const serve_options *o)
{
    static const char *const of_hosts[] = {"include", "exclude", "ssh_port", NULL};
    static const char *const of_own[] = {"replica_port", "replica_restarts", "replica_tls", NULL};
    const bool has_own = o->replicas > 0 || o->replica.n > 0 || o->hostfile != NULL;
    const char *hosts = first_given(ctx, spec, argc, argv, of_hosts);
    const char *own = first_given(ctx, spec, argc, argv, of_own);
    if (o->hostfile != NULL && o->replicas > 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--replicas starts them on this machine, --hostfile on its "
                       "hosts: give one of them");
    }
    if (o->replica.n > 0 && o->replicas > 0 && o->replicas != (int64_t)o->replica.n) {
        return ds_fail(ctx, DS_ERR_ARG, "--replicas %lld, but --replica names %zu",
                       (long long)o->replicas, o->replica.n);
    }
    if (o->hostfile == NULL && hosts != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s goes with --hostfile", hosts);
    }
    if (!has_own && own != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--%s is for servers that are started here: it goes with --replicas, "
                       "--replica or --hostfile",
                       own);
    }
    const char *of_upstream = o->upstream_key_file != NULL ? "upstream_key_file"
                              : o->upstream_cacert != NULL ? "upstream_cacert"
                              : o->upstream_insecure       ? "upstream_insecure"
                                                           : NULL;
    if (of_upstream != NULL && o->upstream.n == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s goes with --upstream", of_upstream);
    }
    return o->upstream_cacert == NULL || !o->upstream_insecure
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG,
                         "--upstream_cacert has no effect beside --upstream_insecure, which takes "
                         "any certificate");
}

/* Of a front's command line: the words that the servers get that it starts, in o->passed. */
static ds_status pass_flags(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                            serve_options *o)
{
    static const char *const own[] = {"host",
                                      "port",
                                      "api_key_file",
                                      "tls_cert",
                                      "tls_key",
                                      "hostfile",
                                      "include",
                                      "exclude",
                                      "ssh_port",
                                      "replicas",
                                      "replica_port",
                                      "replica_tls",
                                      "replica",
                                      "upstream",
                                      "upstream_key_file",
                                      "upstream_cacert",
                                      "upstream_insecure",
                                      "probe_seconds",
                                      "probe_timeout",
                                      "reload_timeout",
                                      "replica_restarts",
                                      "control",
                                      "max_connections",
                                      NULL};
    static const char *const shared[] = {"max_body", "timeout_seconds", "drain_seconds", NULL};
    const bool from_here = o->replica.n == 0 && (o->replicas > 0 || o->hostfile != NULL);
    const char *useless = NULL;
    bool keeps = false;
    bool has_model = o->model != NULL; /* also by a file */
    for (int i = 1; i < argc; ++i) {
        if (strncmp(argv[i], "--", 2) == 0) {
            const dsi_arg *row = NULL;
            bool alone = false;
            DS_TRY(dsi_args_find(ctx, spec, argv[i] + 2, strcspn(argv[i] + 2, "="), &row, &alone));
            keeps = !is_one_of(own, row->name);
            has_model = has_model || row->out == &o->model;
            useless = keeps && !is_one_of(shared, row->name) ? row->name : useless;
        }
        if (keeps) {
            dsi_words_add(&o->passed, argv[i]);
        }
    }
    if (from_here && !has_model) {
        return ds_fail(ctx, DS_ERR_ARG, "give --model DIR, which the replicas serve; or --replica");
    }
    if (!from_here && useless != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s would have no effect: %s; give it there", useless,
                       o->replica.n > 0 ? "the flags of a replica are those of its --replica"
                                        : "the servers of --upstream run already");
    }
    if (from_here) {
        DS_TRY(check_model(ctx, spec, argc, argv, o));
    }
    if (o->control) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "--control is for a server of a model: a front "
                       "behind a front is not built");
    }
    return dsi_words_check(ctx, &o->passed);
}

ds_status flag_rules_check(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                           serve_options *o)
{
    if ((o->tls_cert == NULL) != (o->tls_key == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "--tls_cert and --tls_key go together");
    }
    if (o->control && o->tls_cert != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--tls_cert: the front asks what it starts by http, or with its own "
                       "--replica_tls; give --tls_cert to the front, for clients");
    }
    if (serve_options_are_front(o)) {
        DS_TRY(check_places(ctx, spec, argc, argv, o));
        return pass_flags(ctx, spec, argc, argv, o);
    }
    if (o->model == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "give --model DIR");
    }
    DS_TRY(refuse_alone(ctx, spec, argc, argv));
    DS_TRY(check_model(ctx, spec, argc, argv, o));
    o->max_loras = o->max_loras > 0 ? o->max_loras : (int64_t)o->lora.n;
    return DS_OK;
}
