/* SPDX-License-Identifier: Apache-2.0 */
/* What is compiled for a custom operator: its text, the options, and the key under which the cache
 * has what came of it. See custom_kernel.h. */
#include "accel/cuda/driver/custom_kernel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SOURCE = 4 << 20, KEY_FORMAT = 1 };

/* ---- the text ------------------------------------------------------------------------------ */

static ds_status refuse(ds_ctx *ctx, const ds_op *op, const ds_cuda_kernel *row, const char *what,
                        const char *why)
{
    return dsc_fail(ctx, DS_ERR_ARG, "operator %s: its kernel %s for cuda: %.300s: %.300s",
                    op->name, row->name, what, why);
}

static ds_status read_file(ds_ctx *ctx, const ds_op *op, const ds_cuda_kernel *row,
                           char **source_out)
{
    FILE *file = fopen(row->file, "rbe");
    if (file == NULL) {
        return refuse(ctx, op, row, row->file, strerror(errno));
    }
    char *text = malloc(MOST_SOURCE + 1);
    const size_t n = text != NULL ? fread(text, 1, MOST_SOURCE + 1, file) : 0;
    const bool failed = ferror(file) != 0;
    const int why = errno;
    (void)fclose(file);
    if (text == NULL) {
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for %s", row->file);
    }
    if (failed || n > MOST_SOURCE || memchr(text, '\0', n) != NULL) {
        free(text);
        return refuse(ctx, op, row, row->file,
                      failed            ? strerror(why)
                      : n > MOST_SOURCE ? "more than 4 MiB"
                                        : "it has a byte 0, and is no source");
    }
    text[n] = '\0';
    *source_out = text;
    return DS_OK;
}

static const char *skip_blanks(const char *at)
{
    return at + strspn(at, " \t\r\f\v");
}

static bool begins(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

/* A directive that reads a file which is not deepspeed_cuda.h, or asks for one, also in a comment;
 * NULL: none. In a source whose lines are joined. */
static const char *other_include(const char *source)
{
    static const char *const questions[] = {"__has_include", "__has_embed"};
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; ++i) {
        const char *at = strstr(source, questions[i]);
        if (at != NULL) {
            return at;
        }
    }
    for (const char *at = strpbrk(source, "#%"); at != NULL; at = strpbrk(at + 1, "#%")) {
        const bool directs = *at == '#' || at[1] == ':'; /* %: is another # */
        const char *word = skip_blanks(at + (*at == '#' ? 1 : 2) - (directs ? 0 : 1));
        if (!directs || !(begins(word, "include") || begins(word, "import") ||
                          begins(word, "embed") || begins(word, "/*"))) {
            continue;
        }
        if (!begins(word, "include") ||
            !begins(skip_blanks(word + strlen("include")), "\"" DSC_DEVICE_HEADER_NAME "\"")) {
            return word;
        }
    }
    return NULL;
}

/* A copy in which lines that a backslash splits are one, as the compiler reads them. */
static char *join_lines(const char *source)
{
    char *joined = malloc(strlen(source) + 1);
    size_t n = 0;
    for (const char *at = source; joined != NULL && *at != '\0';) {
        const size_t blanks = *at == '\\' ? strspn(at + 1, " \t\r\f\v") : 0;
        if (*at == '\\' && at[1 + blanks] == '\n') {
            at += 2 + blanks;
        } else {
            joined[n++] = *at++;
        }
    }
    if (joined != NULL) {
        joined[n] = '\0';
    }
    return joined;
}

ds_status dsc_custom_read(ds_ctx *ctx, const ds_op *op, const ds_cuda_kernel *row,
                          char **source_out)
{
    char *source = row->source != NULL ? strdup(row->source) : NULL;
    if (row->source == NULL) {
        DS_TRY(read_file(ctx, op, row, &source));
    }
    char *joined = source != NULL ? join_lines(source) : NULL;
    if (joined == NULL) {
        free(source);
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for a source");
    }
    const char *other = other_include(joined);
    char line[160] = "";
    if (other != NULL) {
        (void)snprintf(line, sizeof line, "%s%.*s", *other == '_' ? "" : "#",
                       (int)strcspn(other, "\n"), other);
    }
    free(joined);
    if (line[0] != '\0') {
        free(source);
        return refuse(ctx, op, row, line,
                      "a source may include \"" DSC_DEVICE_HEADER_NAME
                      "\" alone: the cache would not know what another file had");
    }
    *source_out = source;
    return DS_OK;
}

/* ---- options ------------------------------------------------------------------------------- */

/* Whether NVRTC's option makes no file count, and does not say what the library says. */
static bool may_have(const char *option)
{
    static const char *const names[] = {"-D",
                                        "--use_fast_math",
                                        "-use_fast_math",
                                        "--fmad=",
                                        "-fmad=",
                                        "--ftz=",
                                        "-ftz=",
                                        "--prec-div=",
                                        "-prec-div=",
                                        "--prec-sqrt=",
                                        "-prec-sqrt=",
                                        "--maxrregcount=",
                                        "-maxrregcount=",
                                        "--extra-device-vectorization",
                                        "-extra-device-vectorization",
                                        "-lineinfo",
                                        "--generate-line-info",
                                        "-w",
                                        "--disable-warnings"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        const size_t n = strlen(names[i]);
        const bool has_value = names[i][n - 1] == '=' || i == 0;
        if (strncmp(option, names[i], n) == 0 && (option[n] != '\0') == has_value) {
            return true;
        }
    }
    return false;
}

static void define(dsc_custom_build *b, const char *name, uint32_t value)
{
    char *text = b->defines[b->job.n_options];
    (void)snprintf(text, sizeof b->defines[0], "-D%s=%u", name, value);
    b->job.options[b->job.n_options++] = text;
}

/* most: of the operator; those that the node lacks are 0. */
static void define_operands(dsc_custom_build *b, const char *kind, const ds_meta *metas, uint32_t n,
                            uint32_t most)
{
    for (uint32_t i = 0; i < most; ++i) {
        char name[24];
        (void)snprintf(name, sizeof name, "DS_%s_%u", kind, i);
        define(b, name, i < n ? (uint32_t)metas[i].dtype : 0u);
    }
}

static bool contracts(const ds_cuda_kernel *row)
{
    for (uint32_t i = 0; row->options != NULL && row->options[i] != NULL; ++i) {
        if (strstr(row->options[i], "fmad") != NULL ||
            strstr(row->options[i], "fast_math") != NULL) {
            return true;
        }
    }
    return false;
}

static ds_status list_options(ds_ctx *ctx, const ds_cuda_kernel *row, const ds_kernel_sig *sig,
                              dsc_custom_build *b)
{
    b->job.options[b->job.n_options++] = "--std=c++17";
    if (!contracts(row)) {
        b->job.options[b->job.n_options++] = "--fmad=false";
    }
#define X(name, text, st, bytes) define(b, "DS_" #name, (uint32_t)DS_DTYPE_##name);
    DS_DTYPE_LIST(X)
#undef X
    define_operands(b, "IN", sig->in, sig->n_in, sig->op->n_in_max);
    define_operands(b, "OUT", sig->out, sig->n_out, sig->op->n_out);
    for (uint32_t i = 0; row->options != NULL && row->options[i] != NULL; ++i) {
        if (!may_have(row->options[i])) {
            return refuse(ctx, sig->op, row, row->options[i],
                          "this option is not among those of cuda_kernel.h");
        }
        if (b->job.n_options == DSC_NVRTC_MOST_OPTIONS) {
            return refuse(ctx, sig->op, row, row->options[i], "too many options");
        }
        b->job.options[b->job.n_options++] = row->options[i];
    }
    return DS_OK;
}

/* ---- the key ------------------------------------------------------------------------------- */

static ds_status make_key(ds_ctx *ctx, dsc_custom_build *b)
{
    char compiler[128];
    FILE *out = open_memstream(&b->key, &b->key_bytes);
    if (out == NULL) {
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for a key");
    }
    dsc_nvrtc_say(compiler, sizeof compiler);
    (void)fprintf(out, "format %d, operators %u\n%s, %s\nsm_%d\n%s\n", KEY_FORMAT, DS_OP_VERSION,
                  compiler, dsc_nvrtc_build(), b->job.arch, b->job.name);
    for (uint32_t i = 0; i < b->job.n_options; ++i) {
        (void)fprintf(out, "%zu %s\n", strlen(b->job.options[i]), b->job.options[i]);
    }
    (void)fprintf(out, "%zu %s\n%s", strlen(dsc_device_header), dsc_device_header, b->job.source);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(b->key);
        b->key = NULL;
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for a key");
    }
    return DS_OK;
}

ds_status dsc_custom_describe(ds_ctx *ctx, const ds_cuda_kernel *row, const ds_kernel_sig *sig,
                              const char *source, int arch, dsc_custom_build *build_out)
{
    *build_out = (dsc_custom_build){.job = {.name = row->file != NULL ? row->file : sig->op->name,
                                            .source = source,
                                            .arch = arch}};
    DS_TRY(list_options(ctx, row, sig, build_out));
    return make_key(ctx, build_out);
}
