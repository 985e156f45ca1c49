/* SPDX-License-Identifier: Apache-2.0 */
/* Hostfiles and lists of hosts. See hosts.h. */
#include "launch/hosts.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FAULTS = 10, FILE_CEILING = 4 << 20 };

const char *dsi_host_name_fault(const char *name, size_t n)
{
    if (n == 0) {
        return "a host name is empty";
    }
    if (n > DSI_MAX_HOST_NAME) {
        return "a host name is longer than 253 characters";
    }
    if (!isalnum((unsigned char)name[0])) {
        return "a host name begins with a letter or digit";
    }
    for (size_t i = 0; i < n; ++i) {
        if (!isalnum((unsigned char)name[i]) &&
            (name[i] == '\0' || strchr("._:-", name[i]) == NULL)) {
            return "a host name holds letters, digits and ._:- only (a key for a host belongs "
                   "into ~/.ssh/config)";
        }
    }
    return NULL;
}

void dsi_host_free(dsi_host *host)
{
    free(host->name);
    free(host->user);
    free(host->slots);
    *host = (dsi_host){0};
}

const dsi_host *dsi_hosts_with_user(const dsi_hosts *hosts)
{
    size_t i = 0;
    while (i < hosts->n && hosts->items[i].user == NULL) {
        ++i;
    }
    return i < hosts->n ? &hosts->items[i] : NULL;
}

void dsi_hosts_free(dsi_hosts *hosts)
{
    for (size_t i = 0; i < hosts->n; ++i) {
        dsi_host_free(&hosts->items[i]);
    }
    free(hosts->items);
    *hosts = (dsi_hosts){0};
}

static bool grow(dsi_hosts *hosts)
{
    if (hosts->n < hosts->capacity) {
        return true;
    }
    const size_t capacity = hosts->capacity != 0 ? 2 * hosts->capacity : 8;
    dsi_host *items = realloc(hosts->items, capacity * sizeof *items);
    if (items != NULL) {
        hosts->items = items;
        hosts->capacity = capacity;
    }
    return items != NULL;
}

static ds_status add(ds_ctx *ctx, dsi_hosts *hosts, const char *name, size_t n, uint32_t n_slots)
{
    if (hosts->n >= DSI_MAX_HOSTS || n_slots > DSI_MAX_SLOTS) {
        return ds_fail(ctx, DS_ERR_LIMIT,
                       "expected at most %d hosts with %d slots each, found more", DSI_MAX_HOSTS,
                       DSI_MAX_SLOTS);
    }
    uint32_t *slots = calloc(n_slots > 0 ? n_slots : 1, sizeof *slots);
    char *copy = strndup(name, n);
    if (slots == NULL || copy == NULL || !grow(hosts)) {
        free(slots);
        free(copy);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the list of hosts");
    }
    for (uint32_t i = 0; i < n_slots; ++i) {
        slots[i] = i;
    }
    hosts->items[hosts->n++] = (dsi_host){.name = copy, .slots = slots, .n_slots = n_slots};
    return DS_OK;
}

ds_status dsi_hosts_add(ds_ctx *ctx, dsi_hosts *hosts, const char *name, uint32_t n_slots)
{
    return add(ctx, hosts, name, strlen(name), n_slots);
}

/* ---- hostfile -------------------------------------------------------------------------------- */

typedef struct reader {
    ds_ctx *ctx;
    const char *name;
    uint32_t line;
    dsi_hosts hosts;
    uint32_t *lines; /* where each host stands */
    size_t n_faults;
    dsi_buf faults;
} reader;

static void fault(reader *r, const char *text, const char *found, size_t n)
{
    if (++r->n_faults <= MAX_FAULTS) {
        dsi_buf_printf(&r->faults, "%s%s:%" PRIu32 ": %s, found '%.*s'",
                       r->n_faults > 1 ? "\n" : "", r->name, r->line, text, (int)(n < 80 ? n : 80),
                       found);
    }
}

/* The next word of [*at, end), its length; 0 at the end or a comment. */
static size_t next_word(const char **at, const char *end)
{
    while (*at < end && (**at == ' ' || **at == '\t' || **at == '\r')) {
        ++*at;
    }
    const char *stop = *at;
    while (stop < end && *stop != ' ' && *stop != '\t' && *stop != '\r') {
        ++stop;
    }
    return *at < end && **at == '#' ? 0 : (size_t)(stop - *at);
}

/* The number after key; false when the word is none of that key, or no number up to 2^31. */
static bool read_count(const char *word, size_t n, const char *key, uint32_t *count_out)
{
    const size_t n_key = strlen(key);
    uint64_t count = 0;
    if (n <= n_key || memcmp(word, key, n_key) != 0) {
        return false;
    }
    for (size_t i = n_key; i < n; ++i) {
        if (!isdigit((unsigned char)word[i]) || count > INT32_MAX) {
            return false;
        }
        count = 10 * count + (uint64_t)(word[i] - '0');
    }
    *count_out = count <= INT32_MAX ? (uint32_t)count : INT32_MAX;
    return true;
}

static size_t find_host(const dsi_hosts *hosts, const char *name, size_t n)
{
    size_t i = 0;
    while (i < hosts->n &&
           (strncmp(hosts->items[i].name, name, n) != 0 || hosts->items[i].name[n] != '\0')) {
        ++i;
    }
    return i;
}

/* Words after "name slots=N". */
static bool rest_is_right(reader *r, const char *at, const char *end)
{
    size_t n;
    uint32_t ignored;
    while ((n = next_word(&at, end)) > 0) {
        if (!read_count(at, n, "max_slots=", &ignored) &&
            !read_count(at, n, "max-slots=", &ignored)) {
            fault(r, "expected the end of the line or a comment after slots=N", at, n);
            return false;
        }
        at += n;
    }
    return true;
}

/* NULL when n bytes may be a user's name, which ssh must not take for a flag. */
static const char *user_fault(const char *user, size_t n)
{
    bool right = n > 0 && n <= DSI_MAX_USER && user[0] != '-';
    for (size_t i = 0; i < n; ++i) {
        right = right && user[i] != '\0' &&
                (isalnum((unsigned char)user[i]) || strchr("._-", user[i]) != NULL);
    }
    return right ? NULL : "a user has 1 to 64 letters, digits and ._-, and no '-' first";
}

static ds_status read_line(reader *r, const char *at, const char *end)
{
    uint32_t slots = 0;
    const size_t n_word = next_word(&at, end);
    if (n_word == 0) {
        return DS_OK;
    }
    const char *user = memchr(at, '@', n_word) != NULL ? at : NULL;
    const size_t n_user = user != NULL ? (size_t)((const char *)memchr(at, '@', n_word) - at) : 0;
    const char *host = user != NULL ? at + n_user + 1 : at;
    const size_t n = n_word - (size_t)(host - at);
    const char *wrong = user != NULL ? user_fault(user, n_user) : NULL;
    wrong = wrong != NULL ? wrong : dsi_host_name_fault(host, n);
    if (wrong != NULL) {
        fault(r, wrong, at, n_word);
        return DS_OK;
    }
    at += n_word;
    const size_t n_count = next_word(&at, end);
    if (n_count == 0 || !read_count(at, n_count, "slots=", &slots) || slots == 0 ||
        slots > DSI_MAX_SLOTS) {
        fault(r, "expected 'name slots=N' with N from 1 to 1024", n_count > 0 ? at : host,
              n_count > 0 ? n_count : n);
        return DS_OK;
    }
    const size_t twin = find_host(&r->hosts, host, n);
    if (twin < r->hosts.n) {
        char text[96];
        (void)snprintf(text, sizeof text,
                       "expected each host once (it stands in line %" PRIu32 " too)",
                       r->lines[twin]);
        fault(r, text, host, n);
        return DS_OK;
    }
    if (!rest_is_right(r, at + n_count, end)) {
        return DS_OK;
    }
    DS_TRY(add(r->ctx, &r->hosts, host, n, slots));
    if (user != NULL) {
        char *copy = strndup(user, n_user);
        r->hosts.items[r->hosts.n - 1].user = copy;
        DS_TRY(copy != NULL ? DS_OK : ds_fail(r->ctx, DS_ERR_NOMEM, "no memory for a user"));
    }
    r->lines[r->hosts.n - 1] = r->line;
    return DS_OK;
}

static ds_status read_lines(reader *r, const char *text, size_t n)
{
    const char *end = text + n;
    for (const char *at = text; at < end; ++r->line) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline != NULL ? newline : end;
        DS_TRY(read_line(r, at, stop));
        at = stop + (newline != NULL ? 1 : 0);
    }
    if (r->n_faults > MAX_FAULTS) {
        dsi_buf_printf(&r->faults, "\n… and %zu more", r->n_faults - MAX_FAULTS);
    }
    if (r->n_faults > 0) {
        return ds_fail(r->ctx, DS_ERR_FORMAT, "%s", dsi_buf_text(&r->faults));
    }
    if (r->hosts.n == 0) {
        return ds_fail(
            r->ctx, DS_ERR_FORMAT,
            "%s: expected lines 'name slots=N', found no host; remove the file to run on "
            "this machine alone",
            r->name);
    }
    return DS_OK;
}

ds_status dsi_hosts_parse(ds_ctx *ctx, const char *name, const char *text, size_t n,
                          dsi_hosts *hosts_out)
{
    reader r = {.ctx = ctx,
                .name = name,
                .line = 1,
                .lines = calloc(DSI_MAX_HOSTS, sizeof *r.lines),
                .faults = dsi_buf_make(1 << 14)};
    const ds_status status = r.lines != NULL
                                 ? read_lines(&r, text, n)
                                 : ds_fail(ctx, DS_ERR_NOMEM, "%s: no memory to read it", name);
    if (status >= 0) {
        *hosts_out = r.hosts;
    } else {
        dsi_hosts_free(&r.hosts);
    }
    dsi_buf_free(&r.faults);
    free(r.lines);
    return status;
}

ds_status dsi_hosts_read(ds_ctx *ctx, const char *path, dsi_hosts *hosts_out)
{
    dsi_buf buf = dsi_buf_make(FILE_CEILING);
    ds_status status = dsi_buf_read_file(ctx, path, &buf);
    if (status >= 0) {
        status = dsi_hosts_parse(ctx, path, dsi_buf_text(&buf), buf.size, hosts_out);
    }
    dsi_buf_free(&buf);
    return status;
}

/* ---- counts ---------------------------------------------------------------------------------- */

ds_status dsi_hosts_first(ds_ctx *ctx, dsi_hosts *hosts, uint32_t n_nodes)
{
    if (n_nodes > hosts->n) {
        return ds_fail(
            ctx, DS_ERR_ARG,
            "--num_nodes: expected at most %zu, the hosts of the hostfile, found %" PRIu32,
            hosts->n, n_nodes);
    }
    while (hosts->n > n_nodes) {
        dsi_host_free(&hosts->items[--hosts->n]);
    }
    return DS_OK;
}

ds_status dsi_hosts_set_slots(ds_ctx *ctx, dsi_hosts *hosts, uint32_t n, bool may_grow)
{
    for (size_t i = 0; i < hosts->n; ++i) {
        dsi_host *host = &hosts->items[i];
        if (n > host->n_slots && !may_grow) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "--num_gpus: expected at most %" PRIu32 ", the slots of host %s, found "
                           "%" PRIu32,
                           host->n_slots, host->name, n);
        }
        uint32_t *slots = realloc(host->slots, n * sizeof *slots);
        if (slots == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the list of hosts");
        }
        for (uint32_t k = 0; k < n; ++k) {
            slots[k] = k;
        }
        host->slots = slots;
        host->n_slots = n;
    }
    return DS_OK;
}

const dsi_host *dsi_hosts_unequal(const dsi_hosts *hosts)
{
    size_t i = 1;
    while (i < hosts->n && hosts->items[i].n_slots == hosts->items[0].n_slots) {
        ++i;
    }
    return i < hosts->n ? &hosts->items[i] : NULL;
}

uint32_t dsi_hosts_first_rank(const dsi_hosts *hosts, size_t host)
{
    uint32_t n = 0;
    for (size_t i = 0; i < host; ++i) {
        n += hosts->items[i].n_slots;
    }
    return n;
}

const char *dsi_hosts_of_rank(const dsi_hosts *hosts, uint32_t rank)
{
    for (size_t i = 0; i < hosts->n; ++i) {
        if (rank < hosts->items[i].n_slots) {
            return hosts->items[i].name;
        }
        rank -= hosts->items[i].n_slots;
    }
    return NULL;
}

uint32_t dsi_hosts_n_ranks(const dsi_hosts *hosts)
{
    return dsi_hosts_first_rank(hosts, hosts->n);
}
