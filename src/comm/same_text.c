/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison of texts over ranks. See same_text.h. Lines are compared by hash; only when one
 * differs are texts sent. */
#include "comm/same_text.h"

#include "comm/rank_names.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { LINE_BYTES = 400 };

static const char of_ranks[] = "comparison of ranks";

typedef struct text_lines {
    char *text;         /* lines end with 0 here */
    const char **lines; /* into text */
    int64_t *hashes;
    size_t n;
    const char *what, *remedy;
} text_lines;

static void free_lines(text_lines *t)
{
    free(t->text);
    free(t->lines);
    free(t->hashes);
}

static ds_status split_lines(ds_ctx *ctx, text_lines *t)
{
    size_t room = 1;
    for (const char *c = t->text; *c != '\0'; ++c) {
        room += *c == '\n' ? 1 : 0;
    }
    t->lines = calloc(room, sizeof *t->lines);
    t->hashes = calloc(room, sizeof *t->hashes);
    if (t->lines == NULL || t->hashes == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to compare ranks");
    }
    for (char *at = t->text; *at != '\0';) {
        char *end = strchr(at, '\n');
        char *next = end != NULL ? end + 1 : at + strlen(at);
        if (end != NULL) {
            *end = '\0';
        }
        t->lines[t->n] = at;
        t->hashes[t->n++] = (int64_t)XXH3_64bits(at, strlen(at));
        at = next;
    }
    return DS_OK;
}

/* The first rank whose word differs from rank 0's; 0 when none does. */
static uint32_t first_other(const int64_t *words, uint32_t n_ranks, size_t stride)
{
    for (uint32_t rank = 1; rank < n_ranks; ++rank) {
        if (memcmp(words, words + rank * stride, stride * sizeof *words) != 0) {
            return rank;
        }
    }
    return 0;
}

static ds_status report(dsi_comm *comm, const text_lines *t, uint32_t rank, size_t line)
{
    char own[LINE_BYTES] = "(nothing)";
    char *all = malloc((size_t)comm->size * LINE_BYTES);
    if (all == NULL) {
        return ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory to compare ranks");
    }
    if (line < t->n) {
        const size_t n = strlen(t->lines[line]);
        memset(own, 0, sizeof own);
        memcpy(own, t->lines[line], n < sizeof own ? n : sizeof own - 1);
    }
    ds_status status = dsi_comm_gather(comm, own, all, LINE_BYTES, of_ranks);
    if (status >= 0) {
        status = ds_fail(comm->ctx, DS_ERR_PEER,
                         "%s has another %s than rank 0: rank 0 has "
                         "\"%.*s\", rank %u has \"%.*s\"; %s",
                         dsi_comm_rank_name(comm, rank).text, t->what, LINE_BYTES, all, rank,
                         LINE_BYTES, all + (size_t)rank * LINE_BYTES, t->remedy);
    }
    free(all);
    return status;
}

/* Finds the first line in which the ranks differ. */
static ds_status explain(dsi_comm *comm, const text_lines *t, size_t longest)
{
    int64_t *own = calloc(longest + 1, sizeof *own);
    int64_t *all = calloc((longest + 1) * comm->size, sizeof *all);
    ds_status status = DS_OK;
    if (own == NULL || all == NULL) {
        status = ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory to compare ranks");
        goto done;
    }
    memcpy(own, t->hashes, t->n * sizeof *own);
    DS_TRY_GOTO(status, dsi_comm_gather(comm, own, all, longest * sizeof *own, of_ranks), done);
    const uint32_t rank = first_other(all, comm->size, longest);
    size_t line = 0;
    while (line + 1 < longest && all[line] == all[rank * longest + line]) {
        ++line;
    }
    status = report(comm, t, rank, line);
done:
    free(own);
    free(all);
    return status;
}

static ds_status compare(dsi_comm *comm, const text_lines *t)
{
    const int64_t own[2] = {(int64_t)t->n,
                            (int64_t)XXH3_64bits(t->hashes, t->n * sizeof *t->hashes)};
    int64_t *all = calloc((size_t)comm->size * 2, sizeof *all);
    if (all == NULL) {
        return ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory to compare ranks");
    }
    ds_status status = dsi_comm_gather(comm, own, all, sizeof own, of_ranks);
    const bool differ = status >= 0 && first_other(all, comm->size, 2) > 0;
    size_t longest = 1;
    for (uint32_t rank = 0; rank < comm->size; ++rank) {
        const size_t n = (size_t)all[2 * (size_t)rank];
        longest = n > longest ? n : longest;
    }
    free(all);
    return differ ? explain(comm, t, longest) : status;
}

ds_status dsi_same_text(ds_ctx *ctx, dsi_comm *comm, const char *text, const char *what,
                        const char *remedy)
{
    text_lines t = {.what = what, .remedy = remedy};
    if (comm == NULL || comm->size == 1) {
        return DS_OK;
    }
    t.text = strdup(text);
    ds_status status = t.text != NULL ? split_lines(ctx, &t)
                                      : ds_fail(ctx, DS_ERR_NOMEM, "no memory to compare ranks");
    if (status >= 0) {
        status = compare(comm, &t);
    }
    free_lines(&t);
    return status;
}
