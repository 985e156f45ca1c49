/* SPDX-License-Identifier: Apache-2.0 */
/* Files compared over ranks. See same_files.h.
 *
 * Time, memory and traffic grow with the bytes that a host reads and with files × ranks. Hashes
 * meet in one all-reduce: the largest, and the largest of LIMIT - hash. They add up to LIMIT where
 * all are equal.
 */
#include "train/same_files.h"

#include "base/buf.h"
#include "base/machine_id.h"
#include "comm/rank_names.h"
#include "comm/same_text.h"
#include "io/file.h"

#include <deepspeed/context.h>
#include <deepspeed/op.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { PIECE_BYTES = 64 << 20, LIST_BYTES = 64 << 20 };
#define LIMIT (INT64_C(1) << 62) /* above every hash; of what cannot be read */

/* What tells one file from another: the machine's start, device, inode. */
typedef struct file_id {
    uint64_t machine, device, inode;
    uint64_t size;
} file_id;

/* How the ranks with this rank's file share its pieces. */
typedef struct share {
    uint32_t n, own; /* so many, and this rank's place among them */
} share;

typedef struct compare {
    ds_ctx *ctx;
    dsi_comm *comm;
    const char *const *paths;
    uint32_t n;
    const char *what;
    bool named;      /* of a folder: names are compared too */
    file_id *ids;    /* [rank][file] */
    share *shares;   /* [file] */
    uint64_t *first; /* [file]: its first piece; n + 1 of them */
    int64_t *words;  /* [2][piece]: hashes and LIMIT - hashes; 0 where this rank does not read */
} compare;

/* A piece that this rank reads. */
typedef struct piece {
    uint32_t file;
    uint64_t index; /* in all pieces */
} piece;

typedef struct reading {
    const compare *c;
    const piece *pieces;
    const dsi_map *maps;
} reading;

static const char remedy[] = "give all ranks the same files";

/* ---- what files there are -------------------------------------------------------------------- */

/* Names count in a folder, and say which file is one too many. */
static ds_status names_count(const compare *c, bool *count_out)
{
    const uint64_t own = c->n;
    uint64_t *all = calloc(c->comm->size, sizeof *all);
    if (all == NULL) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "no memory to compare files");
    }
    const ds_status status = dsi_comm_gather(c->comm, &own, all, sizeof own, "comparison of files");
    *count_out = c->named;
    for (uint32_t r = 1; r < c->comm->size; ++r) {
        *count_out = *count_out || all[r] != all[0];
    }
    free(all);
    return status;
}

/* Names that count, and files that cannot be read, are compared as text, so that all hear of them.
 */
static ds_status same_list(const compare *c, file_id *own)
{
    dsi_buf text = dsi_buf_make(LIST_BYTES);
    bool named = false;
    DS_TRY(names_count(c, &named));
    for (uint32_t i = 0; i < c->n; ++i) {
        struct stat s;
        const char *name = dsi_path_name(c->paths[i]);
        if (stat(c->paths[i], &s) != 0) {
            dsi_buf_printf(&text, "%s: %s\n", name, strerror(errno));
            continue;
        }
        own[i] = (file_id){dsi_machine_id(), (uint64_t)s.st_dev, (uint64_t)s.st_ino,
                           (uint64_t)s.st_size};
        dsi_buf_printf(&text, "%s\n", named ? name : "a file");
    }
    const ds_status status =
        text.failed ? ds_fail(c->ctx, DS_ERR_NOMEM, "no memory to compare files")
                    : dsi_same_text(c->ctx, c->comm, dsi_buf_text(&text), c->what, remedy);
    dsi_buf_free(&text);
    return status;
}

static const file_id *id_of(const compare *c, uint32_t rank, uint32_t file)
{
    return &c->ids[(size_t)rank * c->n + file];
}

static bool same_file(const file_id *a, const file_id *b)
{
    return a->machine == b->machine && a->device == b->device && a->inode == b->inode;
}

static ds_status check_sizes(const compare *c)
{
    for (uint32_t f = 0; f < c->n; ++f) {
        for (uint32_t r = 1; r < c->comm->size; ++r) {
            if (id_of(c, r, f)->size != id_of(c, 0, f)->size) {
                return ds_fail(c->ctx, DS_ERR_PEER,
                               "%s has another %s than rank 0: its %s has %llu bytes, rank "
                               "0's %llu; %s",
                               dsi_comm_rank_name(c->comm, r).text, c->what,
                               dsi_path_name(c->paths[f]), (unsigned long long)id_of(c, r, f)->size,
                               (unsigned long long)id_of(c, 0, f)->size, remedy);
            }
        }
    }
    return DS_OK;
}

/* Of a file that is one for all ranks there is nothing to read. */
static void share_pieces(compare *c)
{
    for (uint32_t f = 0; f < c->n; ++f) {
        const file_id *own = id_of(c, c->comm->rank, f);
        const uint64_t pieces = own->size / PIECE_BYTES + (own->size % PIECE_BYTES != 0 ? 1 : 0);
        for (uint32_t r = 0; r < c->comm->size; ++r) {
            const uint32_t same = same_file(own, id_of(c, r, f)) ? 1 : 0;
            c->shares[f].n += same;
            c->shares[f].own += r < c->comm->rank ? same : 0;
        }
        c->first[f + 1] = c->first[f] + (c->shares[f].n == c->comm->size ? 0 : pieces);
    }
}

static bool is_reader(const compare *c, uint32_t file, uint64_t index)
{
    return index % c->shares[file].n == c->shares[file].own;
}

/* ---- what is in them ------------------------------------------------------------------------- */

static void read_task(void *arg, uint32_t task, uint32_t thread)
{
    const reading *r = arg;
    const compare *c = r->c;
    const piece *p = &r->pieces[task];
    const dsi_map *map = &r->maps[p->file];
    const uint64_t begin = (p->index - c->first[p->file]) * PIECE_BYTES;
    int64_t *words[2] = {&c->words[p->index], &c->words[c->first[c->n] + p->index]};
    (void)thread;
    if (begin >= map->size) { /* it cannot be opened any more, or became shorter */
        *words[0] = *words[1] = LIMIT;
        return;
    }
    const uint64_t left = map->size - begin;
    const uint64_t hash = XXH3_64bits(map->data + begin, left < PIECE_BYTES ? left : PIECE_BYTES);
    *words[0] = 1 + (int64_t)(hash % (uint64_t)(LIMIT - 1));
    *words[1] = LIMIT - *words[0];
}

static ds_status read_pieces(const compare *c)
{
    const uint64_t n = c->first[c->n];
    piece *pieces = calloc(n + 1, sizeof *pieces);
    dsi_map *maps = calloc((size_t)c->n + 1, sizeof *maps);
    ds_status status = DS_OK;
    uint32_t n_own = 0;
    if (pieces == NULL || maps == NULL) {
        status = ds_fail(c->ctx, DS_ERR_NOMEM, "no memory to compare files");
    }
    for (uint32_t f = 0; f < c->n && status >= 0; ++f) {
        const uint32_t before = n_own;
        for (uint64_t i = c->first[f]; i < c->first[f + 1]; ++i) {
            if (is_reader(c, f, i)) {
                pieces[n_own++] = (piece){f, i};
            }
        }
        if (n_own > before) {
            (void)dsi_map_open(c->ctx, c->paths[f], 0, &maps[f]);
        }
    }
    if (status >= 0) {
        reading r = {c, pieces, maps};
        ds_parallel(c->ctx, read_task, &r, n_own);
    }
    for (uint32_t f = 0; maps != NULL && f < c->n; ++f) {
        dsi_map_close(&maps[f]);
    }
    free(pieces);
    free(maps);
    return status;
}

/* The word of the rank that read a piece for all ranks with the file of `rank`. */
static int64_t word_for(const compare *c, const int64_t *words, uint32_t rank, uint32_t file)
{
    for (uint32_t r = 0; r < c->comm->size; ++r) {
        if (words[r] != 0 && same_file(id_of(c, rank, file), id_of(c, r, file))) {
            return words[r];
        }
    }
    return 0;
}

/* The pieces differ: by which rank. */
static ds_status report(const compare *c, uint32_t f, uint64_t index, int64_t own)
{
    int64_t *words = calloc(c->comm->size, sizeof *words);
    if (words == NULL) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "no memory to compare files");
    }
    ds_status status = dsi_comm_gather(c->comm, &own, words, sizeof own, "comparison of files");
    uint32_t r = 0;
    const int64_t good = word_for(c, words, 0, f);
    while (status >= 0 && good != LIMIT && r + 1 < c->comm->size &&
           word_for(c, words, r, f) == good) {
        ++r;
    }
    const bool unread = status >= 0 && word_for(c, words, r, f) == LIMIT;
    const char *name = dsi_path_name(c->paths[f]);
    free(words);
    DS_TRY(status);
    return unread ? ds_fail(c->ctx, DS_ERR_PEER,
                            "%s cannot read its %s (%s), or it became shorter; %s",
                            dsi_comm_rank_name(c->comm, r).text, c->what, name, remedy)
                  : ds_fail(c->ctx, DS_ERR_PEER,
                            "%s has another %s than rank 0: %s differs behind byte %llu; %s",
                            dsi_comm_rank_name(c->comm, r).text, c->what, name,
                            (unsigned long long)((index - c->first[f]) * PIECE_BYTES), remedy);
}

/* One all-reduce for all pieces; `all` as c->words. */
static ds_status meet(const compare *c, int64_t *all)
{
    const dsi_comm_part part = {.in = c->words, .out = all, .count = 2 * c->first[c->n]};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_I64,
                                .reduction = DSI_REDUCE_MAX,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "comparison of files"};
    return dsi_comm_run(c->comm, &call);
}

static ds_status check_hashes(const compare *c, const int64_t *all)
{
    const uint64_t n = c->first[c->n];
    for (uint32_t f = 0; f < c->n; ++f) {
        for (uint64_t i = c->first[f]; i < c->first[f + 1]; ++i) {
            if (all[i] + all[n + i] != LIMIT) {
                return report(c, f, i, c->words[i]);
            }
        }
    }
    return DS_OK;
}

static ds_status compare_content(compare *c)
{
    const uint64_t n = c->first[c->n];
    if (n == 0) {
        return DS_OK;
    }
    if (n * PIECE_BYTES > (UINT64_C(4) << 30) && c->comm->rank == 0) {
        ds_log(c->ctx, DS_LOG_JOB, "the ranks have copies of the %s: their contents are compared",
               c->what);
    }
    int64_t *all = calloc(2 * n, sizeof *all);
    c->words = calloc(2 * n, sizeof *c->words);
    ds_status status = all != NULL && c->words != NULL
                           ? read_pieces(c)
                           : ds_fail(c->ctx, DS_ERR_NOMEM, "no memory to compare files");
    if (status >= 0) {
        status = meet(c, all);
    }
    if (status >= 0) {
        status = check_hashes(c, all);
    }
    free(all);
    free(c->words);
    return status;
}

static ds_status compare_all(compare *c, file_id *own)
{
    DS_TRY(same_list(c, own));
    DS_TRY(c->n == 0
               ? DS_OK
               : dsi_comm_gather(c->comm, own, c->ids, c->n * sizeof *own, "comparison of files"));
    DS_TRY(check_sizes(c));
    share_pieces(c);
    return compare_content(c);
}

static ds_status same_files(compare c)
{
    file_id *own = calloc((size_t)c.n + 1, sizeof *own);
    c.ids = calloc((size_t)c.n * c.comm->size + 1, sizeof *c.ids);
    c.first = calloc((size_t)c.n + 1, sizeof *c.first);
    c.shares = calloc((size_t)c.n + 1, sizeof *c.shares);
    const ds_status status = own != NULL && c.ids != NULL && c.first != NULL && c.shares != NULL
                                 ? compare_all(&c, own)
                                 : ds_fail(c.ctx, DS_ERR_NOMEM, "no memory to compare files");
    free(own);
    free(c.ids);
    free(c.first);
    free(c.shares);
    return status;
}

ds_status dsi_same_files(ds_ctx *ctx, dsi_comm *comm, const char *const *paths, uint32_t n_paths,
                         const char *what)
{
    const compare c = {.ctx = ctx, .comm = comm, .paths = paths, .n = n_paths, .what = what};
    return comm == NULL || comm->size == 1 ? DS_OK : same_files(c);
}

ds_status dsi_same_names(ds_ctx *ctx, dsi_comm *comm, const char *const *paths, uint32_t n_paths,
                         const char *what)
{
    const compare c = {
        .ctx = ctx, .comm = comm, .paths = paths, .n = n_paths, .what = what, .named = true};
    return comm == NULL || comm->size == 1 ? DS_OK : same_files(c);
}
