/* Files compared over ranks. See same_files.h. */
#include "train/same_files.h"

#include "base/buf.h"
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

/* What tells one file from another: the machine's start, device, inode. */
typedef struct file_id {
    uint64_t machine, device, inode;
    uint64_t size;
} file_id;

typedef struct compare {
    ds_ctx *ctx;
    dsi_comm *comm;
    const char *const *paths;
    uint32_t n;
    const char *what;
    bool named;       /* of a folder: names are compared too */
    file_id *ids;     /* [rank][file] */
    uint64_t *first;  /* [file]: its first piece; n + 1 of them */
    uint64_t *hashes; /* [rank][piece]; 0 where the rank did not read it */
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
    uint64_t *own;
} reading;

static const char remedy[] = "give all ranks the same files";

static uint64_t machine_id(void)
{
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        (void)fgets(text, sizeof text, file);
        (void)fclose(file);
    }
    return XXH3_64bits(text, strlen(text));
}

static ds_status gather(const compare *c, const void *in, void *out, uint64_t words)
{
    const dsi_comm_part part = {.in = in, .out = out, .count = words * c->comm->size};
    const dsi_comm_call call = {.kind = DSI_COLL_ALL_GATHER,
                                .dtype = DS_DTYPE_I64,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "comparison of files"};
    return words > 0 ? dsi_comm_run(c->comm, &call) : DS_OK;
}

/* Sizes first, and a folder's names: they are compared as text, and a file that cannot be read is
 * told to all.
 */
static ds_status same_list(const compare *c, file_id *own)
{
    dsi_buf text = dsi_buf_make(LIST_BYTES);
    const uint64_t machine = machine_id();
    for (uint32_t i = 0; i < c->n; ++i) {
        struct stat s;
        char name[300];
        (void)snprintf(name, sizeof name, "file %u", i + 1);
        if (c->named) {
            (void)snprintf(name, sizeof name, "%s", dsi_path_name(c->paths[i]));
        }
        if (stat(c->paths[i], &s) != 0) {
            dsi_buf_printf(&text, "%s: %s\n", name, strerror(errno));
            continue;
        }
        own[i] = (file_id){machine, (uint64_t)s.st_dev, (uint64_t)s.st_ino, (uint64_t)s.st_size};
        dsi_buf_printf(&text, "%s: %llu bytes\n", name, (unsigned long long)s.st_size);
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

static bool one_for_all(const compare *c, uint32_t file)
{
    for (uint32_t r = 1; r < c->comm->size; ++r) {
        if (!same_file(id_of(c, 0, file), id_of(c, r, file))) {
            return false;
        }
    }
    return true;
}

/* The rank that reads a piece for all ranks with the same file as `rank`. */
static uint32_t reader_of(const compare *c, uint32_t rank, uint32_t file, uint64_t index)
{
    const file_id *own = id_of(c, rank, file);
    uint32_t n = 0;
    for (uint32_t r = 0; r < c->comm->size; ++r) {
        n += same_file(own, id_of(c, r, file));
    }
    uint64_t left = index % n;
    for (uint32_t r = 0; r < c->comm->size; ++r) {
        if (same_file(own, id_of(c, r, file)) && left-- == 0) {
            return r;
        }
    }
    return rank;
}

static void count_pieces(compare *c)
{
    for (uint32_t f = 0; f < c->n; ++f) {
        const uint64_t size = id_of(c, 0, f)->size; /* the same on all ranks by now */
        const uint64_t pieces = size / PIECE_BYTES + (size % PIECE_BYTES != 0 ? 1 : 0);
        c->first[f + 1] = c->first[f] + (one_for_all(c, f) ? 0 : pieces);
    }
}

static void read_task(void *arg, uint32_t task, uint32_t thread)
{
    const reading *r = arg;
    const piece *p = &r->pieces[task];
    const dsi_map *map = &r->maps[p->file];
    const uint64_t begin = (p->index - r->c->first[p->file]) * PIECE_BYTES;
    (void)thread;
    if (begin < map->size) {
        const uint64_t left = map->size - begin;
        const uint64_t hash =
            XXH3_64bits(map->data + begin, left < PIECE_BYTES ? left : PIECE_BYTES);
        r->own[p->index] = hash != 0 ? hash : 1;
    }
}

/* Hashes this rank's pieces. A file that cannot be opened any more has hashes of 0. */
static ds_status read_pieces(const compare *c, uint64_t *own)
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
            if (reader_of(c, c->comm->rank, f, i) == c->comm->rank) {
                pieces[n_own++] = (piece){f, i};
            }
        }
        if (n_own > before) {
            (void)dsi_map_open(c->ctx, c->paths[f], 0, &maps[f]);
        }
    }
    if (status >= 0) {
        reading r = {c, pieces, maps, own};
        ds_parallel(c->ctx, read_task, &r, n_own);
    }
    for (uint32_t f = 0; maps != NULL && f < c->n; ++f) {
        dsi_map_close(&maps[f]);
    }
    free(pieces);
    free(maps);
    return status;
}

static ds_status check_hashes(const compare *c)
{
    const uint64_t n = c->first[c->n];
    for (uint32_t f = 0; f < c->n; ++f) {
        for (uint64_t i = c->first[f]; i < c->first[f + 1]; ++i) {
            const uint64_t good = c->hashes[reader_of(c, 0, f, i) * n + i];
            for (uint32_t r = 1; r < c->comm->size; ++r) {
                const uint64_t hash = c->hashes[reader_of(c, r, f, i) * n + i];
                const uint64_t begin = (i - c->first[f]) * PIECE_BYTES;
                if (hash == 0 || good == 0) {
                    return ds_fail(c->ctx, DS_ERR_PEER,
                                   "rank %u cannot read its %s (%s), or it became shorter; %s",
                                   reader_of(c, good == 0 ? 0 : r, f, i), c->what,
                                   dsi_path_name(c->paths[f]), remedy);
                }
                if (hash != good) {
                    return ds_fail(c->ctx, DS_ERR_PEER,
                                   "rank %u has another %s than rank 0: %s differs behind byte "
                                   "%llu; %s",
                                   r, c->what, dsi_path_name(c->paths[f]),
                                   (unsigned long long)begin, remedy);
                }
            }
        }
    }
    return DS_OK;
}

static ds_status compare_content(compare *c, uint64_t *own)
{
    const uint64_t n = c->first[c->n];
    if (n == 0) {
        return DS_OK;
    }
    if (n * PIECE_BYTES > (UINT64_C(4) << 30) && c->comm->rank == 0) {
        ds_log(c->ctx, DS_LOG_JOB, "the ranks have copies of the %s: their contents are compared",
               c->what);
    }
    DS_TRY(read_pieces(c, own));
    DS_TRY(gather(c, own, c->hashes, n));
    return check_hashes(c);
}

static ds_status compare_all(compare *c, file_id *own)
{
    DS_TRY(same_list(c, own));
    DS_TRY(gather(c, own, c->ids, (uint64_t)c->n * sizeof *own / sizeof(uint64_t)));
    count_pieces(c);
    const uint64_t n = c->first[c->n];
    uint64_t *hashes = calloc(n + 1, sizeof *hashes);
    c->hashes = calloc((n + 1) * c->comm->size, sizeof *c->hashes);
    const ds_status status = hashes != NULL && c->hashes != NULL
                                 ? compare_content(c, hashes)
                                 : ds_fail(c->ctx, DS_ERR_NOMEM, "no memory to compare files");
    free(hashes);
    free(c->hashes);
    return status;
}

static ds_status same_files(compare c)
{
    file_id *own = calloc((size_t)c.n + 1, sizeof *own);
    c.ids = calloc((size_t)c.n * c.comm->size + 1, sizeof *c.ids);
    c.first = calloc((size_t)c.n + 1, sizeof *c.first);
    const ds_status status = own != NULL && c.ids != NULL && c.first != NULL
                                 ? compare_all(&c, own)
                                 : ds_fail(c.ctx, DS_ERR_NOMEM, "no memory to compare files");
    free(own);
    free(c.ids);
    free(c.first);
    return status;
}

ds_status dsi_same_files(ds_ctx *ctx, dsi_comm *comm, const char *const *paths, uint32_t n_paths,
                         const char *what)
{
    const compare c = {.ctx = ctx, .comm = comm, .paths = paths, .n = n_paths, .what = what};
    return comm == NULL || comm->size == 1 ? DS_OK : same_files(c);
}

/* ---- folders ---- */

static bool is_read(const char *name)
{
    static const char *const endings[] = {".safetensors", ".json", ".jinja", ".txt", ".model"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; ++i) {
        const size_t m = strlen(endings[i]);
        if (name[0] != '.' && n > m && strcmp(name + n - m, endings[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* The paths of what is read, in order. What cannot be listed is a path of its own, so that all
 * ranks hear of it. */
static ds_status list_folder(ds_ctx *ctx, const char *folder, char ***paths_out, uint32_t *n_out)
{
    struct stat s;
    char **names = NULL;
    size_t n_names = 0;
    const bool is_folder = stat(folder, &s) == 0 && S_ISDIR(s.st_mode);
    bool listed = is_folder;
    if (is_folder && dsi_folder_list(ctx, folder, &names, &n_names) < 0) {
        n_names = 0;
        listed = false;
    }
    char **paths = calloc(n_names + 2, sizeof *paths);
    uint32_t n = 0;
    bool whole = paths != NULL;
    for (size_t i = 0; i < n_names && whole; ++i) {
        if (is_read(names[i])) {
            paths[n] = dsi_path_join(folder, names[i]);
            whole = paths[n++] != NULL;
        }
    }
    if (!listed && whole) {
        paths[n] = strdup(folder);
        whole = paths[n++] != NULL;
    }
    dsi_names_free(names, n_names);
    if (!whole) {
        dsi_names_free(paths, n);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to compare files");
    }
    *paths_out = paths;
    *n_out = n;
    return DS_OK;
}

static ds_status same_listed(ds_ctx *ctx, dsi_comm *comm, const char *folder, const char *what)
{
    char **paths = NULL;
    uint32_t n = 0;
    if (folder != NULL) {
        DS_TRY(list_folder(ctx, folder, &paths, &n));
    }
    const compare c = {.ctx = ctx,
                       .comm = comm,
                       .paths = (const char *const *)paths,
                       .n = n,
                       .what = what,
                       .named = true};
    const ds_status status = same_files(c);
    dsi_names_free(paths, n);
    return status;
}

ds_status dsi_same_folder(ds_ctx *ctx, dsi_comm *comm, const char *folder, const char *what)
{
    struct stat s;
    if (comm == NULL || comm->size == 1) {
        return DS_OK;
    }
    char *templates = folder != NULL ? dsi_path_join(folder, "additional_chat_templates") : NULL;
    ds_status status = same_listed(ctx, comm, folder, what);
    if (status >= 0) {
        const bool has = templates != NULL && stat(templates, &s) == 0 && S_ISDIR(s.st_mode);
        status = same_listed(ctx, comm, has ? templates : NULL, "folder of chat templates");
    }
    free(templates);
    return status;
}
